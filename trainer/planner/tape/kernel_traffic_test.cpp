// The bytes of kernels on the tape, beside those that a person would count.
#include "planner/tape/kernel_traffic.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include "planner/testing/recording.h"

namespace fsdp::planner::kernel_traffic_test {
namespace {

at::Tensor made(at::IntArrayRef sizes, at::ScalarType dtype = at::kFloat) {
  return torch::empty(sizes, at::TensorOptions(dtype).device(planned_device()));
}

// Returns the bytes of each kernel that runs.
template <typename Run>
std::vector<int64_t> bytes_of(const Run& run) {
  Recording recording;
  run();
  std::vector<int64_t> bytes;
  for (const TapeEntry& entry : recording.tape().entries()) {
    if (entry.kind == TapeKind::kKernel) bytes.push_back(entry.bytes);
  }
  return bytes;
}

using Bytes = std::vector<int64_t>;

TEST(KernelTraffic, OfNewResults) {
  EXPECT_EQ(bytes_of([] { made({10}).add(made({10})); }), (Bytes{40 + 40 + 40}));
  EXPECT_EQ(bytes_of([] { at::sum(made({10})); }), (Bytes{40 + 4}));
}

TEST(KernelTraffic, OfChangesInPlace) {
  EXPECT_EQ(bytes_of([] { made({10}).add_(made({10})); }), (Bytes{40 + 40 + 40}));
  EXPECT_EQ(bytes_of([] {
              at::Tensor out = made({10});
              at::add_out(out, made({10}), made({10}));
            }),
            (Bytes{40 + 40 + 40}));
}

TEST(KernelTraffic, WhatIsOverwrittenIsNotRead) {
  EXPECT_EQ(bytes_of([] { made({10}).zero_(); }), (Bytes{40}));
  EXPECT_EQ(bytes_of([] { made({10}).fill_(3); }), (Bytes{40}));
  EXPECT_EQ(bytes_of([] { made({10}).copy_(made({10}, at::kBFloat16)); }), (Bytes{40 + 20}));
}

TEST(KernelTraffic, RepeatedElementsAreReadOnce) {
  EXPECT_EQ(bytes_of([] { made({10, 6}).add_(made({6}).expand({10, 6})); }), (Bytes{240 + 240 + 24}));
}

// 5 of 100 rows: read, and written.
TEST(KernelTraffic, RowsOfATable) {
  EXPECT_EQ(bytes_of([] { at::embedding(made({100, 8}), made({5}, at::kLong)); }), (Bytes{5 * 32 + 5 * 8 + 5 * 32}));
}

// Parameters and both means are read and written, gradients are read.
TEST(KernelTraffic, OfTheOptimizer) {
  EXPECT_EQ(bytes_of([] {
              const at::Tensor parameter = made({10}), gradient = made({10}), mean = made({10}), square = made({10});
              at::_fused_adamw_({parameter}, {gradient}, {mean}, {square}, {}, {made({})}, 0.1, 0.9, 0.99, 0, 1e-8,
                                false, false);
            }),
            (Bytes{28 * 10 + 4}));
}

TEST(KernelTraffic, ListsAreChangedByOneKernel) {
  EXPECT_EQ(bytes_of([] { at::_foreach_add_({made({10}), made({20})}, 1); }), (Bytes{2 * 120}));
  EXPECT_EQ(bytes_of([] { at::_foreach_zero_({made({10}), made({20})}); }), (Bytes{120}));
}

TEST(KernelTraffic, CopiesFromTheHostCross) {
  Recording recording;
  const at::Tensor host = torch::empty({10}, at::TensorOptions(at::kFloat).pinned_memory(false));
  made({10}).copy_(host, true);
  made({10}).copy_(made({10}));
  std::vector<std::pair<bool, int64_t>> copies;
  for (const TapeEntry& entry : recording.tape().entries()) {
    if (entry.kind == TapeKind::kKernel) copies.emplace_back(entry.crosses, entry.bytes);
  }
  EXPECT_THAT(copies, ::testing::ElementsAre(std::pair(true, 40), std::pair(false, 80)));
}

}  // namespace
}  // namespace fsdp::planner::kernel_traffic_test
