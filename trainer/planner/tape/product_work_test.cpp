// The FLOPs of single products, and of the steps of whole models beside the count in models/flops.h.
#include "planner/tape/product_work.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include "models/causal_lm.h"
#include "planner/run/planned_run.h"
#include "planner/testing/recording.h"
#include "planner/testing/small_models.h"

namespace fsdp::planner::product_work_test {
namespace {

at::Tensor made(at::IntArrayRef sizes, at::ScalarType dtype = at::kFloat) {
  return torch::empty(sizes, at::TensorOptions(dtype).device(planned_device())).requires_grad_();
}

// Returns the products that run.
template <typename Run>
std::vector<ProductWork> products_of(const Run& run) {
  Recording recording;
  run();
  return recording.tape().products();
}

std::vector<int64_t> sizes_of(const ProductWork& work) { return {work.batch, work.m, work.n, work.k}; }

using Sizes = std::vector<int64_t>;

TEST(ProductWork, MatricesCountTwoForEachElementOfASum) {
  const auto works = products_of([] {
    at::mm(made({3, 5}), made({5, 7}));
    at::addmm(made({7}, at::kBFloat16), made({3, 5}, at::kBFloat16), made({5, 7}, at::kBFloat16));
    at::bmm(made({2, 3, 5}), made({2, 5, 7}));
    at::relu(made({3}));
  });
  ASSERT_EQ(works.size(), 3);
  EXPECT_EQ(sizes_of(works[0]), (Sizes{1, 3, 7, 5}));
  EXPECT_EQ(works[0].flops, 2 * 3 * 5 * 7);
  EXPECT_EQ(works[1].flops, 2 * 3 * 5 * 7);
  EXPECT_EQ(works[1].dtype, at::kBFloat16);
  EXPECT_EQ(sizes_of(works[2]), (Sizes{2, 3, 7, 5}));
  EXPECT_EQ(works[2].flops, 2 * 2 * 3 * 5 * 7);
}

TEST(ProductWork, AKernelOnTheTapeNamesItsProduct) {
  Recording recording;
  at::relu(at::mm(made({3, 5}), made({5, 7})));
  std::vector<int64_t> products;
  for (const TapeEntry& entry : recording.tape().entries()) {
    if (entry.kind == TapeKind::kKernel) products.push_back(entry.id);
  }
  EXPECT_THAT(products, ::testing::ElementsAre(0, -1));
}

// Of the three products, only that of the weight's gradient reads both factors across their rows.
TEST(ProductWork, GradientsOfWeightsReadAcrossRows) {
  const auto works = products_of([] { at::linear(made({3, 5}), made({7, 5})).backward(made({3, 7}).detach()); });
  ASSERT_EQ(works.size(), 3);
  for (const ProductWork& work : works) EXPECT_EQ(work.across_rows, work.k == 3) << work.k;
}

TEST(ProductWork, ConvolutionsInGroups) {
  const auto works = products_of([] {
    at::conv2d(made({2, 6, 8, 8}), made({4, 3, 3, 3}), at::Tensor(), {1, 1}, at::IntArrayRef{0, 0}, {1, 1}, 2)
        .sum()
        .backward();
  });
  ASSERT_EQ(works.size(), 2);
  EXPECT_EQ(sizes_of(works[0]), (Sizes{2, 2 * 6 * 6, 2, 3 * 3 * 3}));
  EXPECT_EQ(works[0].flops, 2.0 * (2 * 6 * 6) * (4 * 3 * 3 * 3));
  EXPECT_EQ(works[1].type, ProductType::kConvolutionBackward);
  EXPECT_EQ(works[1].flops, 2 * works[0].flops);
}

void expect_attention(at::ScalarType dtype) {
  const auto works = products_of([&] {
    const at::Tensor query = made({2, 4, 10, 8}, dtype), key = made({2, 4, 10, 8}, dtype);
    at::scaled_dot_product_attention(query, key, key, {}, 0.0, true).sum().backward();
  });
  ASSERT_EQ(works.size(), 2);
  EXPECT_EQ(works[0].type, ProductType::kAttention);
  EXPECT_TRUE(works[0].causal);
  EXPECT_EQ(sizes_of(works[0]), (Sizes{8, 10, 10, 8}));
  EXPECT_EQ(works[0].flops, 2.0 * 8 * 10 * 10 * (8 + 8));
  EXPECT_EQ(works[1].type, ProductType::kAttentionBackward);
  EXPECT_TRUE(works[1].causal);
  EXPECT_EQ(works[1].flops, 2 * works[0].flops);
}

TEST(ProductWork, AttentionCountsAllKeys) {
  expect_attention(at::kBFloat16);  // flash
  expect_attention(at::kFloat);     // memory-efficient
}

class FlopsOfAStep : public ::testing::TestWithParam<std::tuple<std::string, std::string>> {};

// Widths of heads are multiples of 8, because flash attention computes padded heads. Windows are as long as the
// samples, because a block of queries computes keys that are masked.
TEST_P(FlopsOfAStep, AreThoseOfTheModel) {
  const auto& [name, dtype] = GetParam();
  nlohmann::json model = small_config(name, nlohmann::json::object())["model"];
  constexpr int64_t kTokens = 8, kSamples = 2;
  model.update(name == "gpt2" ? nlohmann::json{{"n_embd", 32}} : nlohmann::json{{"hidden_size", 64}});
  if (model.contains("head_dim")) model["head_dim"] = 16;
  if (model.contains("sliding_window")) model["sliding_window"] = kTokens;
  const double expected = static_cast<double>(kTokens * kSamples) *
                          models::make_causal_lm(model, at::kFloat, c10::kMeta)->flops_per_token(kTokens);
  PlannedRun run(read_json(small_config(name, {{"model", model}, {"dtype", dtype}})),
                 {.has_device = true, .layout = {4, 2}});
  run.step();
  double flops = 0;
  for (const ProductWork& work : run.tape().products()) flops += work.flops;
  EXPECT_NEAR(flops, expected, 1e-3 * expected);
}

INSTANTIATE_TEST_SUITE_P(, FlopsOfAStep,
                         ::testing::Combine(::testing::Values("gpt2", "llama", "gemma2", "olmo3", "phi3", "qwen3"),
                                            ::testing::Values("fp32", "bf16")),
                         [](const auto& info) { return std::get<0>(info.param) + "_" + std::get<1>(info.param); });

}  // namespace
}  // namespace fsdp::planner::product_work_test
