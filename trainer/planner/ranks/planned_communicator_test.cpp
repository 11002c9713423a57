// What collectives on a device allocate beside their tensors.
#include "planner/ranks/planned_communicator.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include "planner/testing/recording.h"

namespace fsdp::planner::planned_communicator_test {
namespace {

using base::AllocationPurpose;

constexpr c10::StreamId kStream = 5;

// Returns the allocations of communication while 4 ranks reduce and scatter 40 elements.
std::vector<TapeEntry> communication(at::ScalarType contributions, at::ScalarType result, c10::Device device) {
  Recording recording;
  const auto ranks = make_planned_communicator(recording.tape(), 0, {.world = 4, .per_host = 4});
  const at::Tensor output = torch::empty({10}, at::TensorOptions(result).device(device));
  const at::Tensor input = torch::empty({40}, at::TensorOptions(contributions).device(device));
  const c10::StreamGuard guard(c10::Stream(c10::Stream::UNSAFE, planned_device(), kStream));
  ranks->reduce_scatter(output, input, {}, {"unit", 0, Pass::kBackward}, nullptr)->wait();
  std::vector<TapeEntry> found;
  for (const TapeEntry& entry : recording.tape().entries()) {
    if (entry.kind == TapeKind::kAllocation && entry.purpose == AllocationPurpose::kCommunication) {
      found.push_back(entry);
    }
  }
  return found;
}

TEST(PlannedReduceScatter, AddsInTheDtypeOfTheContributions) {
  const std::vector<TapeEntry> sums = communication(at::kBFloat16, at::kFloat, planned_device());
  ASSERT_EQ(sums.size(), 1);
  EXPECT_EQ(sums[0].bytes, 10 * 2);
  EXPECT_EQ(sums[0].stream, kStream);
}

TEST(PlannedReduceScatter, NeedsNoMemoryForEqualDtypes) {
  EXPECT_TRUE(communication(at::kFloat, at::kFloat, planned_device()).empty());
}

TEST(PlannedReduceScatter, NeedsNoMemoryOnTheHost) {
  EXPECT_TRUE(communication(at::kBFloat16, at::kFloat, c10::kCPU).empty());
}

TEST(PlannedReduceScatter, TheSumIsFreedAfterItsConversion) {
  Recording recording;
  const auto ranks = make_planned_communicator(recording.tape(), 0, {.world = 4, .per_host = 4});
  const at::Tensor output = torch::empty({10}, at::TensorOptions(at::kFloat).device(planned_device()));
  const at::Tensor input = torch::empty({40}, at::TensorOptions(at::kBFloat16).device(planned_device()));
  ranks->reduce_scatter(output, input, {}, {"unit", 0, Pass::kBackward}, nullptr)->wait();
  std::vector<TapeKind> kinds;
  for (const TapeEntry& entry : recording.tape().entries()) kinds.push_back(entry.kind);
  EXPECT_THAT(kinds,
              ::testing::ElementsAre(TapeKind::kAllocation, TapeKind::kAllocation, TapeKind::kAllocation,
                                     TapeKind::kCollective, TapeKind::kKernel, TapeKind::kFree, TapeKind::kWait));
}

}  // namespace
}  // namespace fsdp::planner::planned_communicator_test
