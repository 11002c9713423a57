#include "models/gpt2.h"

#include <torch/torch.h>

#include <cmath>

#include "models/testing/model_tests.h"

namespace fsdp::models::gpt2_test {
namespace {

using namespace model_tests;

json with(const char* key, const json& value) { return changed(small_gpt2(), {{key, value}}); }

TEST(GPT2, FqnsAreThoseOfHuggingFace) {
  const auto model = make_causal_lm(with("n_layer", 1), torch::kFloat32, torch::kMeta);
  EXPECT_THAT(
      model->named_parameters().keys(),
      ElementsAre("transformer.wte.weight", "transformer.wpe.weight", "transformer.h.0.ln_1.weight",
                  "transformer.h.0.ln_1.bias", "transformer.h.0.attn.c_attn.weight", "transformer.h.0.attn.c_attn.bias",
                  "transformer.h.0.attn.c_proj.weight", "transformer.h.0.attn.c_proj.bias",
                  "transformer.h.0.ln_2.weight", "transformer.h.0.ln_2.bias", "transformer.h.0.mlp.c_fc.weight",
                  "transformer.h.0.mlp.c_fc.bias", "transformer.h.0.mlp.c_proj.weight",
                  "transformer.h.0.mlp.c_proj.bias", "transformer.ln_f.weight", "transformer.ln_f.bias",
                  "lm_head.weight"));
  const auto parameters = model->named_parameters();
  EXPECT_EQ(parameters["transformer.h.0.attn.c_attn.weight"].sizes(), (std::vector<int64_t>{12, 36}));
  EXPECT_EQ(parameters["transformer.h.0.mlp.c_proj.weight"].sizes(), (std::vector<int64_t>{20, 12}));
}

// With 3 layers, the std of residual projections is smaller by sqrt(6). The std of the smallest weight, 120 x 120
// values, is known to 0.6 %.
TEST(GPT2, InitialisationIsThatOfTransformers) {
  torch::manual_seed(7);
  const json config = changed(small_gpt2(), {{"n_embd", 120},
                                             {"n_inner", nullptr},
                                             {"n_layer", 3},
                                             {"vocab_size", 301},
                                             {"n_positions", 130},
                                             {"initializer_range", 0.3}});
  const auto model = make_causal_lm(config, torch::kFloat64, torch::kCPU);
  for (const auto& parameter : model->named_parameters()) {
    const torch::Tensor value = parameter.value();
    const std::string& name = parameter.key();
    if (value.dim() == 2) {
      const double std = name.find("c_proj") == std::string::npos ? 0.3 : 0.3 / std::sqrt(6.0);
      EXPECT_NEAR(value.std().item<double>(), std, 0.02 * std) << name;
      EXPECT_NEAR(value.mean().item<double>(), 0, 0.03 * std) << name;
    } else {
      const double constant = name.find("bias") == std::string::npos ? 1 : 0;
      EXPECT_TRUE(value.eq(constant).all().item<bool>()) << name;
    }
  }
}

TEST(GPT2, SequencesLongerThanItsPositionsAreRefused) {
  const auto model = make_causal_lm(small_gpt2(), torch::kFloat32, torch::kCPU);
  EXPECT_EQ(model->forward(torch::zeros({1, 19}, torch::kInt64)).logits.size(1), 19);
  EXPECT_THAT(error_of([&] { model->forward(torch::zeros({1, 20}, torch::kInt64)); }),
              AllOf(HasSubstr("20 tokens"), HasSubstr("n_positions, 19")));
}

// With wide heads in bf16, the rounding of scores is visible.
TEST(GPT2, AttentionMayBeInFullPrecision) {
  const json config = changed(small_gpt2(), {{"n_embd", 96}, {"n_head", 1}, {"initializer_range", 0.3}});
  torch::manual_seed(3);
  const auto exact = make_causal_lm(config, torch::kFloat64, torch::kCPU);
  const auto ids = torch::randint(31, {1, 19});
  const auto want = exact->forward(ids).logits;
  const auto error_in_bf16 = [&](bool upcast) {
    const auto model =
        make_causal_lm(changed(config, {{"reorder_and_upcast_attn", upcast}}), torch::kBFloat16, torch::kCPU);
    const torch::NoGradGuard no_grad;
    const auto values = exact->named_parameters();
    for (auto& parameter : model->named_parameters()) parameter.value().copy_(values[parameter.key()]);
    const auto logits = model->forward(ids).logits;
    EXPECT_EQ(logits.scalar_type(), torch::kBFloat16);
    return (logits.to(torch::kFloat64) - want).norm().item<double>();
  };
  const double rounded = error_in_bf16(false), upcast = error_in_bf16(true);
  EXPECT_NE(upcast, rounded);
  EXPECT_LE(upcast, 1.1 * rounded);
}

TEST(GPT2, FlopsPerToken) {
  // Counted by hand: c_attn 12x36, c_proj 12x12; c_fc 12x20, c_proj 20x12; head 12x31; 2 layers x 12 x S.
  const double weights = 2 * (432 + 144 + 240 + 240) + 372;
  const auto model = make_causal_lm(small_gpt2(), torch::kFloat32, torch::kMeta);
  EXPECT_EQ(model->flops_per_token(7), 6 * weights + 12 * 2 * 12 * 7);
  // A tied head does the same work.
  EXPECT_EQ(make_causal_lm(with("tie_word_embeddings", true), torch::kFloat32, torch::kMeta)->flops_per_token(7),
            model->flops_per_token(7));
  EXPECT_EQ(model->vocab_size(), 31);
  EXPECT_EQ(model->max_sequence_length(), 19);
}

TEST(GPT2Config, DefaultsAreThoseOfTransformers) {
  const GPT2Config config = parse_gpt2_config(
      {{"vocab_size", 31}, {"n_positions", 19}, {"n_embd", 12}, {"n_layer", 2}, {"n_head", 3}, {"n_inner", nullptr}});
  EXPECT_EQ(config.n_inner, 48);
  EXPECT_EQ(config.activation_function, "gelu_new");
  for (double dropout : {config.resid_pdrop, config.embd_pdrop, config.attn_pdrop}) EXPECT_EQ(dropout, 0.1);
  EXPECT_EQ(config.layer_norm_epsilon, 1e-5);
  EXPECT_EQ(config.initializer_range, 0.02);
  EXPECT_TRUE(config.scale_attn_weights && config.tie_word_embeddings);
  EXPECT_FALSE(config.scale_attn_by_inverse_layer_idx || config.reorder_and_upcast_attn);
}

TEST(GPT2Config, MissingKeys) {
  for (const char* key : {"vocab_size", "n_positions", "n_embd", "n_layer", "n_head"}) {
    json config = small_gpt2();
    config.erase(key);
    EXPECT_THAT(causal_lm_error(config), AllOf(HasSubstr(std::string(key) + " is missing"), HasSubstr("integer")));
  }
}

TEST(GPT2Config, WrongTypesAndValues) {
  EXPECT_THAT(causal_lm_error(with("n_embd", "12")), HasSubstr("n_embd is \"12\"; it must be an integer"));
  EXPECT_THAT(causal_lm_error(with("n_layer", 0)), HasSubstr("n_layer is 0"));
  EXPECT_THAT(causal_lm_error(with("n_inner", -4)), HasSubstr("n_inner is -4"));
  EXPECT_THAT(causal_lm_error(with("n_head", 5)), AllOf(HasSubstr("n_head is 5"), HasSubstr("divisor of n_embd, 12")));
  for (const char* key : {"resid_pdrop", "embd_pdrop", "attn_pdrop"}) {
    EXPECT_THAT(causal_lm_error(with(key, 1.5)),
                HasSubstr(std::string(key) + " is 1.5; it must be a number from 0 to 1"));
  }
  EXPECT_THAT(causal_lm_error(with("layer_norm_epsilon", "1e-5")), HasSubstr("layer_norm_epsilon is \"1e-5\""));
  EXPECT_THAT(causal_lm_error(with("initializer_range", -1)), HasSubstr("initializer_range is -1"));
  EXPECT_THAT(causal_lm_error(with("activation_function", "softmax")),
              AllOf(HasSubstr("activation_function is \"softmax\""), HasSubstr("silu, swish, gelu, gelu_new")));
  for (const char* key : {"scale_attn_weights", "scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn",
                          "tie_word_embeddings", "add_cross_attention"}) {
    EXPECT_THAT(causal_lm_error(with(key, 1)), HasSubstr(std::string(key) + " is 1; it must be true or false"));
  }
}

TEST(GPT2Config, UnsupportedOptionsAreRefused) {
  EXPECT_THAT(causal_lm_error(with("add_cross_attention", true)),
              HasSubstr("add_cross_attention is true; it must be false"));
  EXPECT_THAT(causal_lm_error(with("quantization_config", {{"bits", 4}})), HasSubstr("quantization_config"));
  EXPECT_THAT(causal_lm_error(with("hidden_size", 12)), AllOf(HasSubstr("hidden_size is 12"), HasSubstr("n_embd")));
  EXPECT_THAT(causal_lm_error(with("num_attention_heads", 3)), HasSubstr("n_head"));
}

}  // namespace
}  // namespace fsdp::models::gpt2_test
