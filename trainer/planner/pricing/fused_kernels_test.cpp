// Which kernels are fused, and what they move: by hand, operator for operator.
#include "planner/pricing/fused_kernels.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>

#include "models/layers.h"
#include "planner/testing/recording.h"

namespace fsdp::planner::fused_kernels_test {
namespace {

constexpr int64_t kRows = 64, kColumns = 256;
constexpr int64_t kHalf = 2 * kRows * kColumns;  // bytes of one tensor in bf16
constexpr int64_t kWeight = 2 * kColumns;

at::Tensor made(at::IntArrayRef sizes, at::ScalarType dtype = at::kBFloat16) {
  return torch::empty(sizes, at::TensorOptions(dtype).device(planned_device()));
}

// Records what `run` calls.
class Fused {
 public:
  explicit Fused(const std::function<void()>& run) {
    recording_.tape().note_accesses();
    run();
  }

  // Returns the bytes of each kernel that moves some.
  std::vector<int64_t> bytes(Fusion fusion) {
    const FusedKernels fused(recording_.tape(), fusion);
    std::vector<int64_t> bytes;
    for (size_t i = 0; i < recording_.tape().entries().size(); ++i) {
      if (recording_.tape().entries()[i].kind == TapeKind::kKernel && fused.bytes(i) > 0)
        bytes.push_back(fused.bytes(i));
    }
    return bytes;
  }

 private:
  Recording recording_;
};

using Bytes = std::vector<int64_t>;

TEST(FusedKernels, NothingIsFusedByDefault) {
  const at::Tensor x = made({kRows, kColumns});
  Fused two([&] { x.exp().sin(); });
  EXPECT_EQ(two.bytes(Fusion::kNone), (Bytes{2 * kHalf, 2 * kHalf}));
}

TEST(FusedKernels, AChainReadsItsInputAndWritesTheResultThatAnotherReads) {
  at::Tensor x, w;
  Fused chain([&] {
    x = made({kRows, kColumns}), w = made({kColumns, kColumns});
    x.exp().sin().neg().mm(w);
  });
  const int64_t product = kHalf + 2 * kColumns * kColumns + kHalf;
  EXPECT_EQ(chain.bytes(Fusion::kAll), (Bytes{2 * kHalf, product}));
}

// The product separates two groups; the first one's result is read by the second, too.
TEST(FusedKernels, ProductsSeparateGroups) {
  at::Tensor x, w;
  Fused chain([&] {
    x = made({kRows, kColumns}), w = made({kColumns, kColumns});
    const at::Tensor a = x.exp().sin();
    (a.mm(w) + a).neg().mm(w);
  });
  const int64_t product = kHalf + 2 * kColumns * kColumns + kHalf;
  EXPECT_EQ(chain.bytes(Fusion::kAll), (Bytes{2 * kHalf, product, 3 * kHalf, product}));
}

TEST(FusedKernels, KernelsThatDataDirectStayAlone) {
  at::Tensor x, w;
  Fused chain([&] {
    x = made({kRows, kColumns});
    at::embedding_dense_backward(x.neg(), made({kRows}, at::kLong), 1000, -1, false).neg().mm(made({kColumns, 8}));
  });
  EXPECT_EQ(chain.bytes(Fusion::kAll).size(), 4);
}

// Backward of silu computes it again, and reads the products that forward read.
TEST(FusedKernels, BackwardComputesResultsOfForwardAgain) {
  at::Tensor gate, up, w;
  Fused both([&] {
    gate = made({kRows, kColumns}).requires_grad_(), up = made({kRows, kColumns}).requires_grad_();
    w = made({kColumns, kColumns});
    (at::silu(gate) * up).mm(w).backward(made({kRows, kColumns}));
  });
  const Bytes bytes = both.bytes(Fusion::kAll);
  const int64_t product = kHalf + 2 * kColumns * kColumns + kHalf;
  // Forward: two inputs, the result. Backward: the gradient and both inputs, two gradients.
  EXPECT_EQ(bytes, (Bytes{3 * kHalf, product, product, 5 * kHalf}));
}

// Forward: the input, the weight, the result. Backward: input, gradient, weight, and both gradients.
TEST(FusedKernels, NormsAreOneKernelInEachDirection) {
  for (const Fusion fusion : {Fusion::kModules, Fusion::kAll}) {
    at::Tensor x;
    Fused norm([&] {
      x = made({kRows, kColumns}).requires_grad_();
      models::RMSNorm layer(kColumns, 1e-5, at::TensorOptions(at::kBFloat16).device(planned_device()));
      layer->forward(x).mm(made({kColumns, 8})).sum().backward();
    });
    const Bytes alone = norm.bytes(Fusion::kNone), fused = norm.bytes(fusion);
    EXPECT_GT(alone.size(), fused.size() + 18);
    ASSERT_GT(fused.size(), 2);
    EXPECT_NEAR(static_cast<double>(fused.front()), 2.0 * kHalf + kWeight, 8 * kRows) << static_cast<int>(fusion);
    EXPECT_NEAR(static_cast<double>(fused.back()), 3.0 * kHalf + 2 * kWeight, 16 * kRows) << static_cast<int>(fusion);
  }
}

TEST(FusedKernels, ATapeWithoutAccessesIsRefused) {
  const TapeEntry entry{.kind = TapeKind::kKernel, .stream = 0, .name = 0, .bytes = 8};
  EXPECT_THROW(FusedKernels(Tape({entry}, {"aten::one"}), Fusion::kAll), c10::Error);
  EXPECT_EQ(FusedKernels(Tape({entry}, {"aten::one"}), Fusion::kNone).bytes(0), 8);
}

}  // namespace
}  // namespace fsdp::planner::fused_kernels_test
