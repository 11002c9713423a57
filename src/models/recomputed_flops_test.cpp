// FLOPs that activation checkpointing computes again: counted by hand, and measured.
#include "models/recomputed_flops.h"

#include <torch/torch.h>

#include "models/causal_lm.h"
#include "models/image_classifier.h"
#include "models/seq2seq_lm.h"
#include "models/testing/counted_flops.h"
#include "models/testing/small_models.h"

namespace fsdp::models::recomputed_flops_test {
namespace {

using nlohmann::json;

const char* const kFlash = "aten::_scaled_dot_product_flash_attention_for_cpu";

CheckpointPolicy keeping(const std::vector<std::string>& names) { return CheckpointPolicy::selected_operators(names); }

double of_llama(const CheckpointPolicy& policy, const json& changes = {}) {
  const auto model = make_causal_lm(changed(small_llama(), changes), torch::kFloat32, torch::kMeta);
  model->set_activation_checkpointing(policy);
  return model->recomputed_flops_per_token(7);
}

// 2 layers, for one token: q and o 12x12, k and v 12x4; gate, up, down 12x20; scores and values 12 wide, 7 keys.
TEST(RecomputedFlops, OfLlama) {
  const double attention = 2 * (2 * 144 + 2 * 48), mlp = 2 * 720, scores = 2 * 2 * 12 * 7;
  EXPECT_EQ(of_llama({}), 0);
  EXPECT_EQ(of_llama(CheckpointPolicy::full()), 2 * (attention + mlp + scores));
  EXPECT_EQ(of_llama(CheckpointPolicy::every(2)), attention + mlp + scores);
  EXPECT_EQ(of_llama(keeping({"aten::mm"})), 2 * scores);
  EXPECT_EQ(of_llama(keeping({kFlash})), 2 * (attention + mlp));
  EXPECT_EQ(of_llama(keeping({"aten::bmm"})), 2 * (attention + mlp + scores));
  EXPECT_EQ(of_llama(keeping({"aten::addmm"}), {{"attention_bias", true}}), 2 * (mlp + scores));
  EXPECT_EQ(of_llama(keeping({"aten::addmm"}), {{"mlp_bias", true}}), 2 * (attention + scores));
}

// 2 blocks, for one token: c_attn 12x36, c_proj 12x12, c_fc 12x20, c_proj 20x12; scores and values 12 wide, 7 keys.
TEST(RecomputedFlops, OfGpt2) {
  const double linear = 2 * (432 + 144 + 240 + 240), scores = 2 * 2 * 12 * 7;
  const auto model = make_causal_lm(small_gpt2(), torch::kFloat32, torch::kMeta);
  model->set_activation_checkpointing(CheckpointPolicy::full());
  EXPECT_EQ(model->recomputed_flops_per_token(7), 2 * (linear + scores));
  model->set_activation_checkpointing(keeping({"aten::addmm", kFlash}));
  EXPECT_EQ(model->recomputed_flops_per_token(7), 0);
}

// Images of 9 x 7: blocks have 3 x 2, 3 x 2 and 2 x 1 output positions, as in RegNet.FlopsOfAnImage.
TEST(RecomputedFlops, OfRegNet) {
  const auto model = make_image_classifier(small_regnet(), torch::kFloat32, torch::kMeta);
  const double first = 20 * 30 + 6 * 6 * 18 + 2 * 6 * 1 + 6 * 36 + 6 * 30;
  const double second = 6 * 36 + 6 * 6 * 18 + 2 * 6 * 2 + 6 * 36;
  const double third = 6 * 60 + 2 * 10 * 18 + 2 * 10 * 2 + 2 * 100 + 2 * 60;
  model->set_activation_checkpointing(CheckpointPolicy::full());
  EXPECT_EQ(model->recomputed_flops_per_image(9, 7), 2 * (first + second + third));
  model->set_activation_checkpointing(CheckpointPolicy::every(2));
  EXPECT_EQ(model->recomputed_flops_per_image(9, 7), 2 * (first + third));
  model->set_activation_checkpointing(keeping({"aten::convolution"}));
  EXPECT_EQ(model->recomputed_flops_per_image(9, 7), 0);
}

// 3 layers, 10 tokens: qkv 12x36, proj 12x12, MLP 2 x 12x20; scores and values 12 wide; 3x3 maps are mixed.
TEST(RecomputedFlops, OfDeepViT) {
  const auto model = make_image_classifier(small_deepvit(), torch::kFloat32, torch::kMeta);
  model->set_activation_checkpointing(CheckpointPolicy::full());
  EXPECT_EQ(model->recomputed_flops_per_image(15, 15), 3 * 2 * ((432 + 144 + 480) * 10 + 2 * 12 * 100 + 9 * 100));
  model->set_activation_checkpointing(keeping({"aten::addmm"}));
  EXPECT_EQ(model->recomputed_flops_per_image(15, 15), 3 * 2 * (2 * 12 * 100 + 9 * 100));
}

// 2 encoder and 3 decoder blocks of width 12, inner 15, dense 20; 7 source tokens, 4 target tokens.
TEST(RecomputedFlops, OfT5) {
  const auto model = make_seq2seq_lm(changed(small_t5(), {{"num_decoder_layers", 3}}), torch::kFloat64, torch::kCPU);
  model->initialize();
  const auto source = torch::randint(1, 31, {2, 7}, torch::kInt64),
             target = torch::randint(1, 31, {2, 4}, torch::kInt64);
  const double encoder = 7 * (720 + 480), decoder = 4 * (720 + 360 + 480) + 7 * 360;
  const double of_source = 2 * 15 * 49, of_target = 2 * 15 * (16 + 28);
  const auto check = [&](const CheckpointPolicy& policy, double want) {
    model->set_activation_checkpointing(policy);
    EXPECT_EQ(model->recomputed_flops_per_sample(7, 4), want);
    CountedFlops counted;
    model->forward(source, target).loss.backward();
    EXPECT_EQ(counted.count(), 2 * (model->flops_per_sample(7, 4) + want));
  };
  check({}, 0);
  check(CheckpointPolicy::full(), 2 * (2 * (encoder + of_source) + 3 * (decoder + of_target)));
  check(CheckpointPolicy::every(2), 2 * (encoder + of_source + 2 * (decoder + of_target)));
  check(keeping({"aten::mm"}), 2 * (2 * of_source + 3 * of_target));
  check(keeping({"aten::mm", "aten::bmm"}), 0);
}

}  // namespace
}  // namespace fsdp::models::recomputed_flops_test
