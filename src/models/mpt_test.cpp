#include "models/mpt.h"

#include <torch/torch.h>

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "models/alibi.h"
#include "models/testing/model_tests.h"
#include "models/testing/operator_calls.h"

namespace fsdp::models::mpt_test {
namespace {

using namespace model_tests;

json with(const char* key, const json& value) { return changed(small_mpt(), {{key, value}}); }
json with_attention(const char* key, const json& value) { return with("attn_config", {{key, value}}); }

// Slopes by the definition, for each query and key.
void expect_bias(const torch::Tensor& biases, const std::vector<double>& slopes) {
  const torch::Tensor bias = biases.squeeze(0);
  ASSERT_EQ(bias.size(0), static_cast<int64_t>(slopes.size()));
  for (int64_t head = 0; head < bias.size(0); ++head) {
    for (int64_t query = 0; query < bias.size(1); ++query) {
      for (int64_t key = 0; key < bias.size(2); ++key) {
        const double want = key > query ? -std::numeric_limits<double>::infinity()
                                        : -slopes[static_cast<size_t>(head)] * static_cast<double>(query - key);
        EXPECT_DOUBLE_EQ(bias[head][query][key].item<double>(), want) << head << " " << query << " " << key;
      }
    }
  }
}

TEST(Alibi, BiasIsTheDistanceTimesTheSlopeOfTheHead) {
  expect_bias(alibi_bias({4, 0, 4}, 5, torch::kFloat64), {1.0 / 4, 1.0 / 16, 1.0 / 64, 1.0 / 256});
  // Of eight slopes, the second, fourth, … come first.
  expect_bias(alibi_bias({6, 0, 6}, 3, torch::kFloat64), {1.0 / 4, 1.0 / 16, 1.0 / 64, 1.0 / 256, 1.0 / 2, 1.0 / 8});
  expect_bias(alibi_bias({1, 0, 1}, 3, torch::kFloat64), {1.0 / 256});
}

TEST(Alibi, ARankHasTheSlopesOfItsHeads) {
  const auto all = alibi_bias({6, 0, 6}, 4, torch::kFloat32);
  EXPECT_TRUE(torch::equal(alibi_bias({6, 2, 3}, 4, torch::kFloat32), all.narrow(1, 2, 3)));
}

TEST(Alibi, BiasIsRoundedOnce) {
  const auto exact = alibi_bias({2, 0, 2}, 600, torch::kFloat32);
  const auto rounded = alibi_bias({2, 0, 2}, 600, torch::kBFloat16);
  EXPECT_EQ(rounded.scalar_type(), torch::kBFloat16);
  EXPECT_TRUE(torch::equal(rounded, exact.to(torch::kBFloat16)));
}

TEST(Mpt, FqnsAreThoseOfHuggingFace) {
  const auto model = make_causal_lm(with("n_layers", 1), torch::kFloat32, torch::kMeta);
  EXPECT_THAT(model->named_parameters().keys(),
              ElementsAre("transformer.wte.weight", "transformer.blocks.0.norm_1.weight",
                          "transformer.blocks.0.attn.Wqkv.weight", "transformer.blocks.0.attn.out_proj.weight",
                          "transformer.blocks.0.norm_2.weight", "transformer.blocks.0.ffn.up_proj.weight",
                          "transformer.blocks.0.ffn.down_proj.weight", "transformer.norm_f.weight", "lm_head.weight"));
  const auto parameters = model->named_parameters();
  EXPECT_EQ(parameters["transformer.blocks.0.attn.Wqkv.weight"].sizes(), (std::vector<int64_t>{36, 12}));
  EXPECT_EQ(parameters["transformer.blocks.0.ffn.down_proj.weight"].sizes(), (std::vector<int64_t>{12, 48}));
}

// Scores with a bias of another shape would be formed one by one, and kept.
TEST(Mpt, AttentionIsOneKernel) {
  const auto model = make_causal_lm(small_mpt(), torch::kFloat32, torch::kCPU);
  OperatorCalls calls("aten::_scaled_dot_product_flash_attention_for_cpu");
  model->forward(torch::zeros({2, 7}, torch::kInt64));
  EXPECT_EQ(calls.count(), 2);
}

TEST(Mpt, SequencesLongerThanItsMaximumAreRefused) {
  const auto model = make_causal_lm(small_mpt(), torch::kFloat32, torch::kCPU);
  EXPECT_EQ(model->forward(torch::zeros({1, 19}, torch::kInt64)).logits.size(1), 19);
  EXPECT_THAT(error_of([&] { model->forward(torch::zeros({1, 20}, torch::kInt64)); }),
              AllOf(HasSubstr("20 tokens"), HasSubstr("max_seq_len, 19")));
}

TEST(Mpt, FlopsPerToken) {
  // Counted by hand: Wqkv 12x36, out_proj 12x12; up_proj 12x48, down_proj 48x12; head 12x31; 2 layers x 12 x S.
  const double weights = 2 * (432 + 144 + 576 + 576) + 372;
  const auto model = make_causal_lm(small_mpt(), torch::kFloat32, torch::kMeta);
  EXPECT_EQ(model->flops_per_token(7), 6 * weights + 12 * 2 * 12 * 7);
  EXPECT_EQ(model->vocab_size(), 31);
  EXPECT_EQ(model->max_sequence_length(), 19);
}

TEST(MptConfig, DefaultsAreThoseOfTransformers) {
  const MptConfig config = parse_mpt_config(json::object());
  EXPECT_EQ(config.vocab_size, 50368);
  EXPECT_EQ(config.d_model, 2048);
  EXPECT_EQ(config.n_heads, 16);
  EXPECT_EQ(config.n_layers, 24);
  EXPECT_EQ(config.max_seq_len, 2048);
  EXPECT_EQ(config.layer_norm_epsilon, 1e-5);
  EXPECT_EQ(config.initializer_range, 0.02);
  EXPECT_TRUE(config.tie_word_embeddings);
  EXPECT_EQ(config.attn_pdrop, 0.0);
  EXPECT_FALSE(config.clip_qkv || config.softmax_scale);
}

// The config.json of the published folder of 7 billion parameters, as far as it concerns the model.
TEST(MptConfig, PublishedFolders) {
  const MptConfig config = parse_mpt_config({{"d_model", 4096},
                                             {"n_heads", 32},
                                             {"n_layers", 32},
                                             {"max_seq_len", 2048},
                                             {"vocab_size", 50432},
                                             {"expansion_ratio", 4},
                                             {"emb_pdrop", 0},
                                             {"resid_pdrop", 0},
                                             {"embedding_fraction", 1.0},
                                             {"learned_pos_emb", true},
                                             {"logit_scale", nullptr},
                                             {"no_bias", true},
                                             {"norm_type", "low_precision_layernorm"},
                                             {"verbose", 0},
                                             {"attn_config",
                                              {{"alibi", true},
                                               {"alibi_bias_max", 8},
                                               {"attn_impl", "torch"},
                                               {"attn_pdrop", 0},
                                               {"attn_type", "multihead_attention"},
                                               {"attn_uses_sequence_id", false},
                                               {"clip_qkv", nullptr},
                                               {"prefix_lm", false},
                                               {"qk_ln", false},
                                               {"softmax_scale", nullptr}}}});
  EXPECT_EQ(config.d_model, 4096);
  EXPECT_EQ(config.vocab_size, 50432);
}

TEST(MptConfig, WrongTypesAndValues) {
  EXPECT_THAT(causal_lm_error(with("d_model", "12")), HasSubstr("d_model is \"12\"; it must be an integer"));
  EXPECT_THAT(causal_lm_error(with("n_layers", 0)), HasSubstr("n_layers is 0"));
  EXPECT_THAT(causal_lm_error(with("n_heads", 5)),
              AllOf(HasSubstr("n_heads is 5"), HasSubstr("divisor of d_model, 12")));
  EXPECT_THAT(causal_lm_error(with("layer_norm_epsilon", "1e-5")), HasSubstr("layer_norm_epsilon is \"1e-5\""));
  EXPECT_THAT(causal_lm_error(with("attn_config", 3)), HasSubstr("attn_config is 3; it must be an object or null"));
  EXPECT_THAT(causal_lm_error(with_attention("attn_pdrop", 1.5)),
              HasSubstr("config.json: attn_config: attn_pdrop is 1.5; it must be a number from 0 to 1"));
  EXPECT_THAT(causal_lm_error(with_attention("softmax_scale", 0)),
              HasSubstr("softmax_scale is 0; it must be a number greater"));
  EXPECT_THAT(causal_lm_error(with_attention("clip_qkv", -1)), HasSubstr("clip_qkv is -1"));
}

TEST(MptConfig, UnsupportedOptionsAreRefused) {
  for (const auto& [key, value] : std::vector<std::pair<const char*, json>>{{"expansion_ratio", 2},
                                                                            {"no_bias", false},
                                                                            {"emb_pdrop", 0.1},
                                                                            {"resid_pdrop", 0.1},
                                                                            {"embedding_fraction", 0.5},
                                                                            {"logit_scale", "inv_sqrt_d_model"},
                                                                            {"norm_type", "rmsnorm"},
                                                                            {"hidden_size", 12}}) {
    EXPECT_THAT(causal_lm_error(with(key, value)), HasSubstr(std::string(key) + " is " + value.dump())) << key;
  }
  for (const auto& [key, value] : std::vector<std::pair<const char*, json>>{{"attn_type", "multiquery_attention"},
                                                                            {"alibi", false},
                                                                            {"alibi_bias_max", 16},
                                                                            {"prefix_lm", true},
                                                                            {"qk_ln", true},
                                                                            {"attn_uses_sequence_id", true}}) {
    EXPECT_THAT(causal_lm_error(with_attention(key, value)), HasSubstr(std::string(key) + " is " + value.dump()));
  }
  EXPECT_THAT(causal_lm_error(with("quantization_config", {{"bits", 4}})), HasSubstr("quantization_config"));
}

}  // namespace
}  // namespace fsdp::models::mpt_test
