// What collectives on a device allocate beside their tensors.
#include "planner/ranks/planned_communicator.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <map>
#include <utility>

#include "comm/collective_header.h"
#include "fsdp/memory_sharing.h"
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

// Returns the largest sum of bytes of communication that exist at a time.
int64_t peak_of_communication(const Tape& tape) {
  int64_t now = 0, peak = 0;
  std::map<int64_t, int64_t> alive;
  for (const TapeEntry& entry : tape.entries()) {
    if (entry.kind == TapeKind::kAllocation && entry.purpose == AllocationPurpose::kCommunication) {
      peak = std::max(peak, now += alive[entry.id] = entry.bytes);
    } else if (entry.kind == TapeKind::kFree && alive.count(entry.id)) {
      now -= alive[entry.id];
    }
  }
  return peak;
}

std::shared_ptr<Communicator> four_on_cpus(Tape& tape, HostLinks links) {
  return make_planned_communicator(tape, 0, {.world = 4, .per_host = 4, .links = links});
}

constexpr int64_t kMany = 1 << 20;

// Headers are among the bytes of communication; the pool frees one of them for each larger block.
::testing::Matcher<int64_t> with_headers(int64_t bytes) {
  constexpr int64_t kHeaders = 12 * 4 * comm::kHeaderBytes;
  return ::testing::AllOf(::testing::Ge(bytes), ::testing::Le(bytes + kHeaders));
}

TEST(PlannedGloo, ContributionsAreKeptUntilTheyAreTrimmed) {
  Recording recording;
  const auto ranks = four_on_cpus(recording.tape(), HostLinks::kGloo);
  const at::Tensor input = torch::empty({4 * kMany}), output = torch::empty({kMany});
  const auto reduce = [&] { return ranks->reduce_scatter(output, input, {}, {"unit", 0, Pass::kReduce}, nullptr); };
  reduce()->wait();
  EXPECT_THAT(peak_of_communication(recording.tape()), with_headers(3 * kMany * 4));
  reduce()->wait();  // in the same memory
  EXPECT_THAT(peak_of_communication(recording.tape()), with_headers(3 * kMany * 4));
  ranks->trim();
  const auto two = std::pair(reduce(), reduce());
  EXPECT_THAT(peak_of_communication(recording.tape()), with_headers(2 * 3 * kMany * 4));
}

TEST(PlannedGloo, AnAllReduceReceivesThisRanksPart) {
  Recording recording;
  const auto ranks = four_on_cpus(recording.tape(), HostLinks::kGloo);
  const at::Tensor sum = torch::empty({4 * kMany});
  ranks->all_reduce(sum, sum, {}, {"unit", 0, Pass::kReduce}, nullptr)->wait();
  EXPECT_THAT(peak_of_communication(recording.tape()), with_headers(3 * kMany * 4));
}

TEST(PlannedSharedMemory, RanksReadWhatLiesThere) {
  Recording recording;
  const auto ranks = four_on_cpus(recording.tape(), HostLinks::kMemory);
  EXPECT_TRUE(ranks->memory_sharing().reads_in_place());
  const at::Tensor shared = ranks->memory_sharing().reduction_input(16 * kMany).view(at::kFloat);
  const at::Tensor output = torch::empty({kMany});
  ranks->reduce_scatter(output, shared, {}, {"unit", 0, Pass::kReduce}, nullptr)->wait();
  EXPECT_EQ(peak_of_communication(recording.tape()), 0);
  ranks->reduce_scatter(output, torch::empty({4 * kMany}), {}, {"unit", 1, Pass::kReduce}, nullptr)->wait();
  EXPECT_EQ(peak_of_communication(recording.tape()), 16 * kMany);
}

// The sizes of memory in shared buffers, as they come and go.
std::vector<int64_t> shared_changes(const Tape& tape) {
  std::vector<int64_t> changes;
  std::map<int64_t, int64_t> alive;
  for (const TapeEntry& entry : tape.entries()) {
    if (entry.kind == TapeKind::kAllocation && entry.place == Place::kSharedHost) {
      changes.push_back(alive[entry.id] = entry.bytes);
    } else if (entry.kind == TapeKind::kFree && alive.count(entry.id)) {
      changes.push_back(-alive[entry.id]);
    }
  }
  return changes;
}

TEST(PlannedSharedMemory, ARankHasItsPartOfABuffer) {
  Recording recording;
  const auto ranks = four_on_cpus(recording.tape(), HostLinks::kMemory);
  const at::Tensor kept = ranks->memory_sharing().buffer(8 * kMany, {}, {"unit", 0, Pass::kSetup});
  EXPECT_THAT(shared_changes(recording.tape()), ::testing::ElementsAre(2 * kMany));
}

TEST(PlannedSharedMemory, ATransientBufferExistsFromItsWriteToItsLastReader) {
  Recording recording;
  const auto ranks = four_on_cpus(recording.tape(), HostLinks::kMemory);
  const at::Tensor whole = ranks->memory_sharing().buffer(8 * kMany, {.transient = true}, {"unit", 0, Pass::kSetup});
  EXPECT_THAT(shared_changes(recording.tape()), ::testing::IsEmpty());
  ranks->memory_sharing().await_readers(whole, {"unit", 0, Pass::kForward});
  EXPECT_THAT(shared_changes(recording.tape()), ::testing::ElementsAre(2 * kMany));
  auto reading = ranks->all_gather(whole, whole.narrow(0, 0, 2 * kMany), {"unit", 0, Pass::kForward});
  reading->wait();
  EXPECT_THAT(shared_changes(recording.tape()), ::testing::ElementsAre(2 * kMany));
  reading.reset();
  EXPECT_THAT(shared_changes(recording.tape()), ::testing::ElementsAre(2 * kMany, -2 * kMany));
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
