#include "models/presets/decoders.h"

#include <algorithm>

#include "models/decoder/families.h"

namespace fsdp::models {
namespace {

using nlohmann::json;

struct DecoderSizes {
  int64_t vocabulary, width, intermediate, layers, heads, key_value_heads, positions;
};

const char* class_of_family(const std::string& model_type) {
  const auto& families = decoder_families();
  return std::find_if(families.begin(), families.end(),
                      [&](const DecoderFamily& family) { return model_type == family.model_type; })
      ->class_name;
}

// folder: on huggingface.co. settings: the keys of its config.json other than sizes. Token ids are left out, since a
// preset has no tokenizer: without padding, every row of the embedding is trained.
Preset decoder_preset(const char* name, const char* folder, const char* model_type, const DecoderSizes& sizes,
                      const json& settings) {
  json config{{"model_type", model_type},
              {"architectures", {class_of_family(model_type)}},
              {"vocab_size", sizes.vocabulary},
              {"hidden_size", sizes.width},
              {"intermediate_size", sizes.intermediate},
              {"num_hidden_layers", sizes.layers},
              {"num_attention_heads", sizes.heads},
              {"num_key_value_heads", sizes.key_value_heads},
              {"max_position_embeddings", sizes.positions},
              {"pad_token_id", nullptr}};
  config.update(settings);
  return {name, std::string("config.json of ") + folder, config, {}};
}

json changed_settings(json settings, const json& changes) {
  settings.update(changes);
  return settings;
}

json llama3_settings(double factor, bool tied) {
  return {{"rms_norm_eps", 1e-5},
          {"rope_theta", 500000.0},
          {"rope_scaling",
           {{"rope_type", "llama3"},
            {"factor", factor},
            {"low_freq_factor", 1.0},
            {"high_freq_factor", 4.0},
            {"original_max_position_embeddings", 8192}}},
          {"tie_word_embeddings", tied}};
}

json qwen2_settings(bool tied) {
  return {{"rms_norm_eps", 1e-6}, {"rope_theta", 1000000.0}, {"tie_word_embeddings", tied}};
}

json qwen3_settings(bool tied) { return changed_settings(qwen2_settings(tied), {{"head_dim", 128}}); }

json mistral_settings(double theta, const json& window) {
  return {{"rms_norm_eps", 1e-5}, {"rope_theta", theta}, {"sliding_window", window}, {"tie_word_embeddings", false}};
}

json granite_settings(double attention_multiplier, double logits_scaling) {
  return {{"rms_norm_eps", 1e-5},         {"rope_theta", 10000000.0},
          {"embedding_multiplier", 12.0}, {"attention_multiplier", attention_multiplier},
          {"residual_multiplier", 0.22},  {"logits_scaling", logits_scaling},
          {"tie_word_embeddings", true}};
}

json gemma_settings() {
  return {
      {"head_dim", 256}, {"hidden_activation", "gelu_pytorch_tanh"}, {"rms_norm_eps", 1e-6}, {"rope_theta", 10000.0}};
}

json gemma2_settings() {
  return changed_settings(gemma_settings(), {{"query_pre_attn_scalar", 256},
                                             {"sliding_window", 4096},
                                             {"attn_logit_softcapping", 50.0},
                                             {"final_logit_softcapping", 30.0}});
}

json gemma3_settings() {
  return changed_settings(gemma_settings(), {{"query_pre_attn_scalar", 256},
                                             {"sliding_window", 512},
                                             {"sliding_window_pattern", 6},
                                             {"rope_theta", 1000000.0},
                                             {"rope_local_base_freq", 10000.0}});
}

json phi3_settings(double theta, const json& window, bool tied) {
  return {{"rms_norm_eps", 1e-5}, {"rope_theta", theta}, {"sliding_window", window}, {"tie_word_embeddings", tied}};
}

// Divisors of the frequencies of the 48 pairs that are rotated, for sequences longer than 4096.
json phi4_mini_settings() {
  const std::vector<double> divisors{
      1.0,         1.118320672, 1.250641126, 1.398617824, 1.564103225, 1.74916897,  1.956131817, 2.187582649,
      2.446418898, 2.735880826, 3.059592084, 3.421605075, 3.826451687, 4.279200023, 4.785517845, 5.351743533,
      5.984965424, 6.693110555, 7.485043894, 8.370679318, 9.36110372,  10.4687158,  11.70738129, 13.09260651,
      14.64173252, 16.37415215, 18.31155283, 20.47818807, 22.90118105, 25.61086418, 28.64115884, 32.03,
      32.1,        32.13,       32.23,       32.6,        32.61,       32.64,       32.66,       32.7,
      32.71,       32.93,       32.97,       33.28,       33.49,       33.5,        44.16,       47.77};
  return changed_settings(phi3_settings(10000.0, 262144, true),
                          {{"partial_rotary_factor", 0.75},
                           {"original_max_position_embeddings", 4096},
                           {"rope_scaling",
                            {{"type", "longrope"},
                             {"long_factor", divisors},
                             {"short_factor", std::vector<double>(divisors.size(), 1.0)}}}});
}

json olmo_settings() { return {{"rms_norm_eps", 1e-6}, {"rope_theta", 500000.0}, {"tie_word_embeddings", false}}; }

// Three layers with windows, then one without; YaRN for the latter alone.
json olmo3_settings() {
  return changed_settings(olmo_settings(), {{"sliding_window", 4096},
                                            {"rope_scaling",
                                             {{"rope_type", "yarn"},
                                              {"factor", 8.0},
                                              {"original_max_position_embeddings", 8192},
                                              {"attention_factor", 1.2079441541679836},
                                              {"beta_fast", 32.0},
                                              {"beta_slow", 1.0}}}});
}

json smollm2_settings() {
  return {{"rms_norm_eps", 1e-5},
          {"rope_theta", 100000.0},
          {"tie_word_embeddings", true},
          {"initializer_range", 0.041666666666666664}};
}

json smollm3_settings() {
  return {
      {"rms_norm_eps", 1e-6}, {"rope_theta", 5000000.0}, {"no_rope_layer_interval", 4}, {"tie_word_embeddings", true}};
}

// Experts of a layer, and of a token.
json experts(const char* key, int64_t count, int64_t per_token) {
  return {{key, count}, {"num_experts_per_tok", per_token}};
}

json qwen3_moe_settings(int64_t width_of_expert) {
  json settings = changed_settings(qwen3_settings(false), experts("num_experts", 128, 8));
  return changed_settings(settings, {{"moe_intermediate_size", width_of_expert}, {"norm_topk_prob", true}});
}

json qwen2_moe_settings() {
  return changed_settings(qwen2_settings(false), {{"num_experts", 60},
                                                  {"num_experts_per_tok", 4},
                                                  {"moe_intermediate_size", 1408},
                                                  {"shared_expert_intermediate_size", 5632},
                                                  {"norm_topk_prob", false}});
}

json olmoe_settings() {
  json settings = changed_settings(experts("num_experts", 64, 8), {{"norm_topk_prob", false}});
  return changed_settings(settings, {{"rms_norm_eps", 1e-5}, {"rope_theta", 10000.0}, {"tie_word_embeddings", false}});
}

json mixtral_settings() {
  return changed_settings(mistral_settings(1000000.0, nullptr), experts("num_local_experts", 8, 2));
}

json glm4_settings() {
  return {{"head_dim", 128},        {"rms_norm_eps", 1e-5},
          {"rope_theta", 10000.0},  {"partial_rotary_factor", 0.5},
          {"attention_bias", true}, {"tie_word_embeddings", false}};
}

}  // namespace

std::vector<Preset> decoder_presets() {
  // Sizes: vocabulary, width, width of the MLP, layers, heads, heads of keys and values, positions.
  const auto make = decoder_preset;
  return {
      make("llama-3.2-1b", "meta-llama/Llama-3.2-1B", "llama", {128256, 2048, 8192, 16, 32, 8, 131072},
           changed_settings(llama3_settings(32.0, true), {{"head_dim", 64}})),
      make("llama-3.1-8b", "meta-llama/Llama-3.1-8B", "llama", {128256, 4096, 14336, 32, 32, 8, 131072},
           llama3_settings(8.0, false)),
      make("llama-3.1-70b", "meta-llama/Llama-3.1-70B", "llama", {128256, 8192, 28672, 80, 64, 8, 131072},
           llama3_settings(8.0, false)),
      make("smollm2-135m", "HuggingFaceTB/SmolLM2-135M", "llama", {49152, 576, 1536, 30, 9, 3, 8192},
           smollm2_settings()),
      make("smollm3-3b", "HuggingFaceTB/SmolLM3-3B", "smollm3", {128256, 2048, 11008, 36, 16, 4, 65536},
           smollm3_settings()),
      make("qwen2.5-0.5b", "Qwen/Qwen2.5-0.5B", "qwen2", {151936, 896, 4864, 24, 14, 2, 32768}, qwen2_settings(true)),
      make("qwen2.5-7b", "Qwen/Qwen2.5-7B", "qwen2", {152064, 3584, 18944, 28, 28, 4, 131072}, qwen2_settings(false)),
      make("qwen3-0.6b", "Qwen/Qwen3-0.6B", "qwen3", {151936, 1024, 3072, 28, 16, 8, 40960}, qwen3_settings(true)),
      make("qwen3-8b", "Qwen/Qwen3-8B", "qwen3", {151936, 4096, 12288, 36, 32, 8, 40960}, qwen3_settings(false)),
      make("qwen3-32b", "Qwen/Qwen3-32B", "qwen3", {151936, 5120, 25600, 64, 64, 8, 40960}, qwen3_settings(false)),
      make("mistral-7b-v0.1", "mistralai/Mistral-7B-v0.1", "mistral", {32000, 4096, 14336, 32, 32, 8, 32768},
           mistral_settings(10000.0, 4096)),
      make("mistral-7b-v0.3", "mistralai/Mistral-7B-v0.3", "mistral", {32768, 4096, 14336, 32, 32, 8, 32768},
           mistral_settings(1000000.0, nullptr)),
      make("ministral-8b", "mistralai/Ministral-8B-Instruct-2410", "mistral", {131072, 4096, 12288, 36, 32, 8, 32768},
           changed_settings(mistral_settings(100000000.0, 32768), {{"head_dim", 128}})),
      make("granite-3.3-2b", "ibm-granite/granite-3.3-2b-instruct", "granite", {49159, 2048, 8192, 40, 32, 8, 131072},
           granite_settings(0.015625, 8.0)),
      make("granite-3.3-8b", "ibm-granite/granite-3.3-8b-instruct", "granite", {49159, 4096, 12800, 40, 32, 8, 131072},
           granite_settings(0.0078125, 16.0)),
      make("gemma-2b", "google/gemma-2b", "gemma", {256000, 2048, 16384, 18, 8, 1, 8192}, gemma_settings()),
      make("gemma-2-2b", "google/gemma-2-2b", "gemma2", {256000, 2304, 9216, 26, 8, 4, 8192}, gemma2_settings()),
      make("gemma-2-9b", "google/gemma-2-9b", "gemma2", {256000, 3584, 14336, 42, 16, 8, 8192}, gemma2_settings()),
      make("gemma-3-1b", "google/gemma-3-1b-pt", "gemma3_text", {262144, 1152, 6912, 26, 4, 1, 32768},
           gemma3_settings()),
      make("phi-3-mini-4k", "microsoft/Phi-3-mini-4k-instruct", "phi3", {32064, 3072, 8192, 32, 32, 32, 4096},
           phi3_settings(10000.0, 2047, false)),
      make("phi-4", "microsoft/phi-4", "phi3", {100352, 5120, 17920, 40, 40, 10, 16384},
           phi3_settings(250000.0, nullptr, false)),
      make("phi-4-mini", "microsoft/Phi-4-mini-instruct", "phi3", {200064, 3072, 8192, 32, 24, 8, 131072},
           phi4_mini_settings()),
      make("olmo-2-7b", "allenai/OLMo-2-1124-7B", "olmo2", {100352, 4096, 11008, 32, 32, 32, 4096}, olmo_settings()),
      make("olmo-3-7b", "allenai/Olmo-3-1025-7B", "olmo3", {100278, 4096, 11008, 32, 32, 32, 65536}, olmo3_settings()),
      make("glm-4-9b", "zai-org/GLM-4-9B-0414", "glm4", {151552, 4096, 13696, 40, 32, 2, 32768}, glm4_settings()),
      make("mixtral-8x7b", "mistralai/Mixtral-8x7B-v0.1", "mixtral", {32000, 4096, 14336, 32, 32, 8, 32768},
           mixtral_settings()),
      make("qwen1.5-moe-a2.7b", "Qwen/Qwen1.5-MoE-A2.7B", "qwen2_moe", {151936, 2048, 5632, 24, 16, 16, 8192},
           qwen2_moe_settings()),
      make("qwen3-30b-a3b", "Qwen/Qwen3-30B-A3B", "qwen3_moe", {151936, 2048, 6144, 48, 32, 4, 40960},
           qwen3_moe_settings(768)),
      make("qwen3-235b-a22b", "Qwen/Qwen3-235B-A22B", "qwen3_moe", {151936, 4096, 12288, 94, 64, 4, 40960},
           qwen3_moe_settings(1536)),
      make("olmoe-1b-7b", "allenai/OLMoE-1B-7B-0924", "olmoe", {50304, 2048, 1024, 16, 16, 16, 4096}, olmoe_settings()),
  };
}

}  // namespace fsdp::models
