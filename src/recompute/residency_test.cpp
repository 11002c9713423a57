// Tests the live bytes between forward and backward: recomputed results are not kept.
#include "fsdp/activation_checkpoint.h"
#include "recompute/testing/counted_block.h"

namespace fsdp::recompute::residency_test {
namespace {

using testing::CountedBlock;
using testing::CountingAllocator;
using testing::LiveBytes;
using testing::make_block;
using torch::Tensor;

constexpr int64_t kWidth = 32, kRows = 64, kBlocks = 6;
constexpr int64_t kActivation = kRows * kWidth * 4;  // bytes

class Chain {
 public:
  explicit Chain(CheckpointPolicy policy) : policy_(std::move(policy)) {
    for (int64_t i = 0; i < kBlocks; ++i) {
      blocks_.push_back(make_block(kWidth));
      blocks_.back()->to(at::kFloat);
      for (Tensor& parameter : blocks_.back()->parameters()) parameter.mutable_grad() = torch::zeros_like(parameter);
    }
  }
  Tensor operator()(Tensor x) {
    for (int64_t i = 0; i < kBlocks; ++i) x = policy_.forward(i, blocks_[i], x);
    return x;
  }

 private:
  CheckpointPolicy policy_;
  std::vector<CountedBlock> blocks_;
};

// Returns the live bytes after forward, including the final result. Expects that only that result is left after
// backward.
int64_t kept_bytes(const CheckpointPolicy& policy) {
  CountingAllocator allocator;
  Chain chain(policy);
  Tensor x = torch::ones({kRows, kWidth}), ones = torch::ones({kRows, kWidth});
  LiveBytes bytes;
  Tensor y = chain(x);
  const int64_t after_forward = bytes();
  y.backward(ones);
  EXPECT_EQ(bytes(), kActivation) << "after backward, with the result still held";
  return after_forward;
}

CheckpointOptions without_random_state() { return {.preserve_rng_state = false}; }

TEST(Residency, OneActivationForEachRecomputedBlock) {
  EXPECT_EQ(kept_bytes({}), 2 * kBlocks * kActivation);  // the results of linear and of gelu
  EXPECT_EQ(kept_bytes(CheckpointPolicy::full(without_random_state())), kBlocks * kActivation);
  EXPECT_EQ(kept_bytes(CheckpointPolicy::every(2, without_random_state())),
            (kBlocks / 2 + 2 * kBlocks / 2) * kActivation);
}

TEST(Residency, SelectedOperatorsAreKeptUntilBackward) {
  CheckpointOptions options{.preserve_rng_state = false, .save_ops = {"aten::addmm"}};
  EXPECT_EQ(kept_bytes(CheckpointPolicy::full(options)), 2 * kBlocks * kActivation);
}

TEST(Residency, OneRegionKeepsItsInputsAndResultsOnly) {
  CountingAllocator allocator;
  Chain chain({});
  Tensor x = torch::ones({kRows, kWidth});
  LiveBytes bytes;
  auto token = std::make_shared<int>();
  Tensor y = activation_checkpoint(without_random_state(), [&chain, token](const Tensor& in) { return chain(in); }, x);
  EXPECT_EQ(bytes(), kActivation);
  EXPECT_LT(bytes.peak(), 4 * kActivation);  // no graph is recorded in the first run
  EXPECT_EQ(token.use_count(), 2);
  y.backward(torch::ones({kRows, kWidth}), /*retain_graph=*/true);
  EXPECT_EQ(token.use_count(), 2);
  y.backward(torch::ones({kRows, kWidth}));
  EXPECT_EQ(token.use_count(), 1);  // the function is released with the graph
}

}  // namespace
}  // namespace fsdp::recompute::residency_test
