#include "models/decoder/decoder.h"

#include <torch/torch.h>

#include <cmath>
#include <stdexcept>

#include "models/causal_lm.h"
#include "models/testing/model_tests.h"

namespace fsdp::models::decoder_test {
namespace {

using namespace model_tests;

json with(const char* key, const json& value) { return changed(small_llama(), {{key, value}}); }

std::string without_error(const char* key) {
  json config = small_llama();
  config.erase(key);
  return causal_lm_error(config);
}

TEST(Llama, FqnsAreThoseOfHuggingFace) {
  json config = with("attention_bias", true);
  config["num_hidden_layers"] = 1;
  config["mlp_bias"] = true;
  const auto model = make_causal_lm(config, torch::kFloat32, torch::kMeta);
  EXPECT_THAT(model->named_parameters().keys(),
              ElementsAre("model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight",
                          "model.layers.0.self_attn.q_proj.bias", "model.layers.0.self_attn.k_proj.weight",
                          "model.layers.0.self_attn.k_proj.bias", "model.layers.0.self_attn.v_proj.weight",
                          "model.layers.0.self_attn.v_proj.bias", "model.layers.0.self_attn.o_proj.weight",
                          "model.layers.0.self_attn.o_proj.bias", "model.layers.0.mlp.gate_proj.weight",
                          "model.layers.0.mlp.gate_proj.bias", "model.layers.0.mlp.up_proj.weight",
                          "model.layers.0.mlp.up_proj.bias", "model.layers.0.mlp.down_proj.weight",
                          "model.layers.0.mlp.down_proj.bias", "model.layers.0.input_layernorm.weight",
                          "model.layers.0.post_attention_layernorm.weight", "model.norm.weight", "lm_head.weight"));
}

TEST(Llama, InitialisationIsThatOfTransformers) {
  json config = with("attention_bias", true);
  config["hidden_size"] = 120;
  config["initializer_range"] = 0.3;
  config["pad_token_id"] = 4;
  torch::manual_seed(7);
  const auto parameters = make_causal_lm(config, torch::kFloat64, torch::kCPU)->named_parameters();
  const auto weight = parameters["model.layers.1.mlp.up_proj.weight"];
  EXPECT_NEAR(weight.std().item<double>(), 0.3, 0.03);
  EXPECT_NEAR(weight.mean().item<double>(), 0.0, 0.03);
  EXPECT_TRUE(parameters["model.norm.weight"].eq(1).all().item<bool>());
  EXPECT_TRUE(parameters["model.layers.0.self_attn.q_proj.bias"].eq(0).all().item<bool>());
  EXPECT_TRUE(parameters["model.embed_tokens.weight"][4].eq(0).all().item<bool>());
  EXPECT_TRUE(parameters["model.embed_tokens.weight"][5].ne(0).all().item<bool>());
}

TEST(Llama, FlopsPerToken) {
  // Counted by hand: q 12x12, k and v 12x4, o 12x12; gate, up, down 12x20; head 12x31; sdpa 2 layers x 12 x S.
  const double weights = 2 * (144 + 48 + 48 + 144 + 3 * 240) + 372;
  const auto model = make_causal_lm(small_llama(), torch::kFloat32, torch::kMeta);
  EXPECT_EQ(model->flops_per_token(7), 6 * weights + 12 * 2 * 12 * 7);
  // A tied head does the same work.
  EXPECT_EQ(make_causal_lm(with("tie_word_embeddings", true), torch::kFloat32, torch::kMeta)->flops_per_token(7),
            model->flops_per_token(7));
  EXPECT_EQ(model->vocab_size(), 31);
  EXPECT_EQ(model->max_sequence_length(), 2048);
}

json small_config(const std::string& model_type, const json& changes = {}) {
  for (const json& config : small_decoders()) {
    if (config.at("model_type") == model_type) return changed(config, changes);
  }
  throw std::invalid_argument(model_type);
}

std::shared_ptr<CausalLM> on_meta(const std::string& model_type, const json& changes = {}) {
  return make_causal_lm(small_config(model_type, changes), torch::kFloat32, torch::kMeta);
}

// Returns the names and sizes of the parameters of layer 0, which must be the only one.
std::vector<std::string> parameters_of_layer(const std::string& model_type, const json& changes = {}) {
  const auto model = on_meta(model_type, changed({{"num_hidden_layers", 1}}, changes));
  const std::string prefix = "model.layers.0.";
  std::vector<std::string> all;
  for (const auto& parameter : model->named_parameters()) {
    if (parameter.key().starts_with(prefix)) {
      all.push_back(c10::str(parameter.key().substr(prefix.size()), " ", parameter.value().sizes()));
    }
  }
  EXPECT_EQ(model->named_parameters().size(), all.size() + 3);
  return all;
}

// The configs have 6 query heads, 2 key heads and heads of 4, unless said otherwise.
TEST(DecoderParameters, Phi3FusesProjections) {
  EXPECT_THAT(parameters_of_layer("phi3"),
              ElementsAre("self_attn.qkv_proj.weight [40, 24]", "self_attn.o_proj.weight [24, 24]",
                          "mlp.gate_up_proj.weight [40, 24]", "mlp.down_proj.weight [24, 20]",
                          "input_layernorm.weight [24]", "post_attention_layernorm.weight [24]"));
}

TEST(DecoderParameters, Glm4FusesTheMlpAndHasFourNorms) {
  EXPECT_THAT(
      parameters_of_layer("glm4"),
      ElementsAre("self_attn.q_proj.weight [24, 12]", "self_attn.q_proj.bias [24]", "self_attn.k_proj.weight [8, 12]",
                  "self_attn.k_proj.bias [8]", "self_attn.v_proj.weight [8, 12]", "self_attn.v_proj.bias [8]",
                  "self_attn.o_proj.weight [12, 24]", "mlp.gate_up_proj.weight [40, 12]",
                  "mlp.down_proj.weight [12, 20]", "input_layernorm.weight [12]",
                  "post_self_attn_layernorm.weight [12]", "post_attention_layernorm.weight [12]",
                  "post_mlp_layernorm.weight [12]"));
}

TEST(DecoderParameters, Gemma2HasFourNorms) {
  EXPECT_THAT(
      parameters_of_layer("gemma2"),
      ElementsAre("self_attn.q_proj.weight [24, 12]", "self_attn.k_proj.weight [8, 12]",
                  "self_attn.v_proj.weight [8, 12]", "self_attn.o_proj.weight [12, 24]",
                  "mlp.gate_proj.weight [20, 12]", "mlp.up_proj.weight [20, 12]", "mlp.down_proj.weight [12, 20]",
                  "input_layernorm.weight [12]", "post_attention_layernorm.weight [12]",
                  "pre_feedforward_layernorm.weight [12]", "post_feedforward_layernorm.weight [12]"));
}

// Heads of 2.
TEST(DecoderParameters, Olmo2HasNormsAfterTheProjections) {
  EXPECT_THAT(
      parameters_of_layer("olmo2"),
      ElementsAre("self_attn.q_proj.weight [12, 12]", "self_attn.k_proj.weight [4, 12]",
                  "self_attn.v_proj.weight [4, 12]", "self_attn.o_proj.weight [12, 12]", "self_attn.q_norm.weight [12]",
                  "self_attn.k_norm.weight [4]", "mlp.gate_proj.weight [20, 12]", "mlp.up_proj.weight [20, 12]",
                  "mlp.down_proj.weight [12, 20]", "post_attention_layernorm.weight [12]",
                  "post_feedforward_layernorm.weight [12]"));
}

TEST(DecoderParameters, Qwen3HasNormsOfEachHead) {
  EXPECT_THAT(
      parameters_of_layer("qwen3", {{"attention_bias", true}}),
      ElementsAre("self_attn.q_proj.weight [24, 12]", "self_attn.q_proj.bias [24]", "self_attn.k_proj.weight [8, 12]",
                  "self_attn.k_proj.bias [8]", "self_attn.v_proj.weight [8, 12]", "self_attn.v_proj.bias [8]",
                  "self_attn.o_proj.weight [12, 24]", "self_attn.o_proj.bias [12]", "self_attn.q_norm.weight [4]",
                  "self_attn.k_norm.weight [4]", "mlp.gate_proj.weight [20, 12]", "mlp.up_proj.weight [20, 12]",
                  "mlp.down_proj.weight [12, 20]", "input_layernorm.weight [12]",
                  "post_attention_layernorm.weight [12]"));
}

// Returns the value of all weights of norms, which are initialised.
double initial_norm_weight(const std::string& model_type) {
  const auto model = make_causal_lm(small_config(model_type), torch::kFloat32, torch::kCPU);
  for (auto& parameter : model->parameters()) parameter.detach().fill_(std::nan(""));
  model->initialize();
  std::vector<torch::Tensor> weights;
  for (const auto& parameter : model->named_parameters()) {
    if (parameter.key().find("norm") != std::string::npos) weights.push_back(parameter.value().detach());
  }
  const torch::Tensor all = torch::cat(weights);
  EXPECT_TRUE(all.eq(all[0]).all().item<bool>());
  return all[0].item<double>();
}

// Gemma adds 1 to them.
TEST(DecoderInitialisation, WeightsOfGemmasNormsAreZero) {
  for (const char* gemma : {"gemma", "gemma2", "gemma3_text"}) EXPECT_EQ(initial_norm_weight(gemma), 0.0);
  for (const char* other : {"llama", "qwen3", "olmo2", "glm4"}) EXPECT_EQ(initial_norm_weight(other), 1.0);
}

// For one layer: q 12x24, k and v 12x8, o 24x12; gate, up, down 12x20. The head has 12x31; heads are 24 wide together.
TEST(DecoderFlops, CountTheKeysOfWindows) {
  const double weights = 2 * (288 + 96 + 96 + 288 + 3 * 240) + 372;
  const auto gemma2 = on_meta("gemma2");  // the first of 2 layers has a window of 3
  EXPECT_EQ(gemma2->flops_per_token(7), 6 * weights + 12 * 24 * (3 + 7));
  EXPECT_EQ(gemma2->flops_per_token(3), 6 * weights + 12 * 24 * (3 + 3));
  EXPECT_EQ(gemma2->flops_per_token(2), 6 * weights + 12 * 24 * (2 + 2));
  const auto without = on_meta("gemma2", {{"layer_types", {"full_attention", "full_attention"}}});
  EXPECT_EQ(without->flops_per_token(7), 6 * weights + 12 * 24 * (7 + 7));
}

// Queries, keys and values 24x40, o 24x24; gate and up 24x40, down 20x24; head 24x31.
TEST(DecoderFlops, CountFusedProjections) {
  const double weights = 2 * (960 + 576 + 960 + 480) + 744;
  EXPECT_EQ(on_meta("phi3")->flops_per_token(7), 6 * weights + 12 * 24 * (7 + 7));
}

double recomputed(const std::string& model_type, const CheckpointPolicy& policy) {
  const auto model = on_meta(model_type);
  model->set_activation_checkpointing(policy);
  return model->recomputed_flops_per_token(7);
}

// Layers as in DecoderFlops.CountTheKeysOfWindows.
TEST(DecoderFlops, RecomputedOnesAreThoseOfTheLayersOperators) {
  const auto keeping = [](const char* name) { return CheckpointPolicy::selected_operators({name}); };
  const char* const flash = "aten::_scaled_dot_product_flash_attention_for_cpu";
  const double linear = 2 * (288 + 96 + 96 + 288 + 3 * 240), key = 2 * 2 * 24;
  EXPECT_EQ(recomputed("gemma2", {}), 0);
  EXPECT_EQ(recomputed("gemma2", CheckpointPolicy::full()), 2 * linear + key * (3 + 7));
  EXPECT_EQ(recomputed("gemma2", CheckpointPolicy::every(2)), linear + key * 3);
  EXPECT_EQ(recomputed("gemma2", keeping("aten::mm")), key * (3 + 7));
  // Capped scores are products of batches of matrices; others are a fused operator's.
  EXPECT_EQ(recomputed("gemma2", keeping("aten::bmm")), 2 * linear);
  EXPECT_EQ(recomputed("gemma2", keeping(flash)), 2 * linear + key * (3 + 7));
  EXPECT_EQ(recomputed("gemma3_text", keeping("aten::bmm")), 2 * linear + key * (3 + 7));
  EXPECT_EQ(recomputed("gemma3_text", keeping(flash)), 2 * linear);
  // In GLM-4, queries, keys and values alone have biases.
  EXPECT_EQ(recomputed("glm4", keeping("aten::addmm")), 2 * (linear - 2 * (288 + 96 + 96)) + key * (7 + 7));
}

TEST(LlamaConfig, MissingKeys) {
  for (const char* key :
       {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"}) {
    EXPECT_THAT(without_error(key), AllOf(HasSubstr(std::string(key) + " is missing"), HasSubstr("integer")));
  }
  EXPECT_EQ(without_error("num_key_value_heads"), kNoError);
}

TEST(LlamaConfig, WrongTypesAndValues) {
  EXPECT_THAT(causal_lm_error(with("vocab_size", "31")), HasSubstr("vocab_size is \"31\"; it must be an integer"));
  EXPECT_THAT(causal_lm_error(with("vocab_size", 31.5)), HasSubstr("vocab_size is 31.5"));
  EXPECT_THAT(causal_lm_error(with("vocab_size", 0)), HasSubstr("vocab_size is 0"));
  EXPECT_THAT(causal_lm_error(with("vocab_size", uint64_t{1} << 63)), HasSubstr("vocab_size is 9223372036854775808"));
  EXPECT_THAT(causal_lm_error(with("num_hidden_layers", -1)), HasSubstr("num_hidden_layers is -1"));
  EXPECT_THAT(causal_lm_error(with("attention_bias", 1)), HasSubstr("attention_bias is 1; it must be true or false"));
  EXPECT_THAT(causal_lm_error(with("rms_norm_eps", "1e-6")),
              HasSubstr("rms_norm_eps is \"1e-6\"; it must be a number"));
  EXPECT_THAT(causal_lm_error(with("rms_norm_eps", -1)), HasSubstr("rms_norm_eps is -1"));
  EXPECT_THAT(causal_lm_error(with("hidden_act", "softmax")),
              AllOf(HasSubstr("\"softmax\""), HasSubstr("silu, swish, gelu")));
  EXPECT_THAT(causal_lm_error(with("pad_token_id", 31)), HasSubstr("pad_token_id is 31"));
  EXPECT_THAT(causal_lm_error(with("pad_token_id", UINT64_MAX)), HasSubstr("pad_token_id is 18446744073709551615"));
  EXPECT_THAT(causal_lm_error(with("quantization_config", {{"bits", 4}})), HasSubstr("quantization_config"));
}

TEST(LlamaConfig, HeadsThatDoNotDivide) {
  EXPECT_THAT(causal_lm_error(with("num_attention_heads", 5)),
              AllOf(HasSubstr("num_attention_heads is 5"), HasSubstr("divisor of hidden_size, 12")));
  EXPECT_THAT(causal_lm_error(with("num_key_value_heads", 4)),
              AllOf(HasSubstr("num_key_value_heads is 4"), HasSubstr("divisor of num_attention_heads, 6")));
  EXPECT_THAT(causal_lm_error(with("head_dim", 7)), AllOf(HasSubstr("head_dim is 7"), HasSubstr("even")));
  EXPECT_THAT(causal_lm_error(with("num_attention_heads", 12)),
              AllOf(HasSubstr("num_attention_heads is 12"), HasSubstr("a head, 1, is even")));
}

}  // namespace
}  // namespace fsdp::models::decoder_test
