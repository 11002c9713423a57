#include "models/decoder/decoder.h"

#include <torch/torch.h>

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
