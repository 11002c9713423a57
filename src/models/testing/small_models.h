// For tests: a small config.json of every architecture, with sizes that have few divisors.
#pragma once

#include <nlohmann/json.hpp>
#include <ostream>
#include <string>
#include <vector>

namespace fsdp::models {

inline nlohmann::json changed(nlohmann::json config, const nlohmann::json& changes) {
  if (!changes.is_null()) config.update(changes);
  return config;
}

inline nlohmann::json small_decoder(const char* model_type, const char* class_name,
                                    const nlohmann::json& changes = {}) {
  return changed({{"model_type", model_type},
                  {"architectures", {class_name}},
                  {"vocab_size", 31},
                  {"hidden_size", 12},
                  {"intermediate_size", 20},
                  {"num_hidden_layers", 2},
                  {"num_attention_heads", 6},
                  {"num_key_value_heads", 2},
                  {"pad_token_id", nullptr},
                  {"tie_word_embeddings", false}},
                 changes);
}

inline nlohmann::json small_llama() {
  nlohmann::json config = small_decoder("llama", "LlamaForCausalLM");
  config.erase("pad_token_id");
  config.erase("tie_word_embeddings");
  return config;
}

// A small config of every family of decoders, with windows shorter than the sequences of the tests.
inline std::vector<nlohmann::json> small_decoders() {
  const nlohmann::json window{{"sliding_window", 3}};
  return {
      small_llama(),
      small_decoder("qwen2", "Qwen2ForCausalLM",
                    {{"use_sliding_window", true}, {"sliding_window", 3}, {"max_window_layers", 1}}),
      small_decoder("qwen3", "Qwen3ForCausalLM", {{"head_dim", 4}}),
      small_decoder("mistral", "MistralForCausalLM", window),
      small_decoder("ministral", "MinistralForCausalLM", {{"sliding_window", 3}, {"head_dim", 6}}),
      small_decoder("smollm3", "SmolLM3ForCausalLM", {{"no_rope_layer_interval", 2}}),
      small_decoder("granite", "GraniteForCausalLM",
                    {{"embedding_multiplier", 3.0},
                     {"attention_multiplier", 0.4},
                     {"residual_multiplier", 0.6},
                     {"logits_scaling", 2.0}}),
      small_decoder("gemma", "GemmaForCausalLM", {{"head_dim", 4}}),
      small_decoder("gemma2", "Gemma2ForCausalLM",
                    {{"head_dim", 4},
                     {"sliding_window", 3},
                     {"query_pre_attn_scalar", 5},
                     {"attn_logit_softcapping", 3.0},
                     {"final_logit_softcapping", 2.0}}),
      small_decoder("gemma3_text", "Gemma3ForCausalLM",
                    {{"head_dim", 4}, {"sliding_window", 3}, {"sliding_window_pattern", 2}}),
      small_decoder("phi3", "Phi3ForCausalLM", {{"hidden_size", 24}, {"partial_rotary_factor", 0.5}}),
      small_decoder("olmo2", "Olmo2ForCausalLM"),
      small_decoder("olmo3", "Olmo3ForCausalLM", {{"sliding_window", 3}, {"num_hidden_layers", 2}}),
      small_decoder("glm4", "Glm4ForCausalLM", {{"head_dim", 4}}),
      small_decoder("mixtral", "MixtralForCausalLM", {{"num_local_experts", 3}}),
      small_decoder("qwen2_moe", "Qwen2MoeForCausalLM",
                    {{"num_experts", 5},
                     {"num_experts_per_tok", 2},
                     {"moe_intermediate_size", 7},
                     {"shared_expert_intermediate_size", 9}}),
      small_decoder("qwen3_moe", "Qwen3MoeForCausalLM",
                    {{"num_experts", 5},
                     {"num_experts_per_tok", 3},
                     {"moe_intermediate_size", 7},
                     {"norm_topk_prob", true},
                     {"head_dim", 4}}),
      small_decoder("olmoe", "OlmoeForCausalLM", {{"num_experts", 4}, {"num_experts_per_tok", 2}, {"clip_qkv", 0.5}})};
}

inline nlohmann::json small_gpt2() {
  return {{"model_type", "gpt2"}, {"architectures", {"GPT2LMHeadModel"}},
          {"vocab_size", 31},     {"n_positions", 19},
          {"n_embd", 12},         {"n_layer", 2},
          {"n_head", 3},          {"n_inner", 20},
          {"resid_pdrop", 0.0},   {"embd_pdrop", 0.0},
          {"attn_pdrop", 0.0},    {"tie_word_embeddings", false}};
}

inline nlohmann::json small_mpt() {
  return {{"model_type", "mpt"}, {"architectures", {"MptForCausalLM"}},
          {"vocab_size", 31},    {"max_seq_len", 19},
          {"d_model", 12},       {"n_layers", 2},
          {"n_heads", 3},        {"tie_word_embeddings", false}};
}

inline nlohmann::json small_t5() {
  return {{"model_type", "t5"},
          {"architectures", {"T5ForConditionalGeneration"}},
          {"vocab_size", 31},
          {"d_model", 12},
          {"d_kv", 5},
          {"d_ff", 20},
          {"num_layers", 2},
          {"num_heads", 3},
          {"relative_attention_num_buckets", 6},
          {"relative_attention_max_distance", 9},
          {"dropout_rate", 0.0},
          {"tie_word_embeddings", false},
          {"decoder_start_token_id", 0}};
}

inline nlohmann::json small_regnet(const char* layer_type = "y") {
  return {{"model_type", "regnet"},   {"architectures", {"RegNetForImageClassification"}},
          {"embedding_size", 5},      {"hidden_sizes", {6, 10}},
          {"depths", {2, 1}},         {"groups_width", 2},
          {"layer_type", layer_type}, {"num_labels", 7}};
}

inline nlohmann::json small_deepvit() {
  return {
      {"model_type", "deepvit"}, {"architectures", {"DeepViT"}}, {"image_size", 15},         {"patch_size", 5},
      {"hidden_size", 12},       {"num_hidden_layers", 3},       {"num_attention_heads", 3}, {"intermediate_size", 20},
      {"num_labels", 7}};
}

inline nlohmann::json small_dhen() {
  return {{"model_type", "dhen"},
          {"architectures", {"DHEN"}},
          {"num_numeric_features", 3},
          {"table_rows", {4, 7, 2}},
          {"embedding_width", 8},
          {"num_hidden_layers", 2},
          {"interaction_outputs", 2},
          {"num_attention_heads", 2},
          {"interactions", {"attention", "cross", "dot_product", "linear", "mlp"}},
          {"cross_rank", 3},
          {"mlp_size", 5},
          {"numeric_sizes", {6}},
          {"head_sizes", {9}},
          {"initializer_range", 0.2}};
}

// The properties of a causal language model that the common tests need.
struct SmallModel {
  std::string name;
  nlohmann::json config;  // without tied weights and dropout
  std::string embedding;  // FQN of the embedding's weight
  std::string block;      // class name
  std::string layers_key;
  std::vector<std::string> dropout_keys;  // as JSON pointers
  std::string activation;                 // the operator that each block's forward calls once
};

inline std::ostream& operator<<(std::ostream& out, const SmallModel& model) { return out << model.name; }

inline bool has_experts(const nlohmann::json& config) {
  return config.contains("num_experts") || config.contains("num_local_experts");
}

// Returns a config of so many blocks, with initial values that differ visibly, and the losses of the routers.
inline nlohmann::json config_of_stages(const SmallModel& model, int64_t blocks, bool tied) {
  nlohmann::json config =
      changed(model.config, {{model.layers_key, blocks}, {"initializer_range", 0.3}, {"tie_word_embeddings", tied}});
  if (has_experts(config)) config["output_router_logits"] = true;
  return config;
}

inline std::vector<SmallModel> small_models() {
  std::vector<SmallModel> models;
  for (const nlohmann::json& config : small_decoders()) {
    const auto type = config.at("model_type").get<std::string>();
    std::vector<std::string> dropouts{"/attention_dropout"};
    if (type == "phi3") dropouts.emplace_back("/resid_pdrop");
    const std::string activation = has_experts(config)         ? "aten::sort"
                                   : type.starts_with("gemma") ? "aten::gelu"
                                                               : "aten::silu";
    models.push_back(
        {type, config, "model.embed_tokens.weight", "DecoderLayer", "num_hidden_layers", dropouts, activation});
  }
  models.push_back({"gpt2",
                    small_gpt2(),
                    "transformer.wte.weight",
                    "GPT2Block",
                    "n_layer",
                    {"/resid_pdrop", "/embd_pdrop", "/attn_pdrop"},
                    "aten::gelu"});
  models.push_back({"mpt",
                    small_mpt(),
                    "transformer.wte.weight",
                    "MptBlock",
                    "n_layers",
                    {"/attn_config/attn_pdrop"},
                    "aten::gelu"});
  return models;
}

inline void set_dropout(nlohmann::json& config, const std::string& key, double probability) {
  config[nlohmann::json::json_pointer(key)] = probability;
}

// The properties of an image classifier that the common tests need. All models have 3 blocks.
struct SmallImageModel {
  std::string name;
  nlohmann::json config;  // without dropout
  std::string block;      // class name
  std::vector<std::string> dropout_keys;
};

inline std::ostream& operator<<(std::ostream& out, const SmallImageModel& model) { return out << model.name; }

inline std::vector<SmallImageModel> small_image_models() {
  return {{"regnet_x", small_regnet("x"), "RegNetLayer", {}},
          {"regnet_y", small_regnet(), "RegNetLayer", {}},
          {"deepvit", small_deepvit(), "DeepViTBlock", {"dropout", "attention_dropout"}}};
}

}  // namespace fsdp::models
