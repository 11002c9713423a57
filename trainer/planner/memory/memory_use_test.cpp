// Peaks, phases and categories of hand-made tapes.
#include "planner/memory/memory_use.h"

#include <gtest/gtest.h>

#include "planner/memory/device_replay.h"

namespace fsdp::planner::memory_use_test {
namespace {

using base::AllocationPurpose;

TapeEntry born(int64_t id, int64_t bytes, AllocationPurpose purpose = AllocationPurpose::kOther) {
  return {.kind = TapeKind::kAllocation, .purpose = purpose, .stream = 0, .id = id, .bytes = bytes};
}
TapeEntry freed(int64_t id) { return {.kind = TapeKind::kFree, .id = id}; }
TapeEntry in_backward(TapeEntry entry) {
  entry.backward = true;
  return entry;
}

int64_t bytes_of(const MemoryMoment& moment, MemoryKind kind) { return moment.by_kind[static_cast<size_t>(kind)]; }

// One step: 100 bytes of shards before it, 10 that forward keeps for backward, 7 that forward frees, 5 in backward, 20
// of the optimizer, which stay.
Tape one_step() {
  return Tape({born(0, 100, AllocationPurpose::kShards), born(1, 10), born(2, 7), freed(2), in_backward(born(3, 5)),
               in_backward(freed(1)), in_backward(freed(3)), born(4, 20, AllocationPurpose::kOptimizerState)},
              {});
}
const std::vector<size_t> kOneStep = {1, 8};

TEST(MemoryUse, AMomentListsTheMemoryInUse) {
  const MemoryUse use = memory_use(one_step(), kOneStep, {Place::kDevice});
  EXPECT_EQ(use.peak.bytes, 120);
  EXPECT_EQ(use.peak.phase, StepPhase::kUpdate);
  EXPECT_EQ(bytes_of(use.peak, MemoryKind::kShards), 100);
  EXPECT_EQ(bytes_of(use.peak, MemoryKind::kOptimizerState), 20);
  ASSERT_EQ(use.largest_at_peak.size(), 2);
  EXPECT_EQ(use.lifetimes[use.largest_at_peak[0]].id, 0);
  EXPECT_EQ(use.lifetimes[use.largest_at_peak[1]].id, 4);
}

TEST(MemoryUse, MemoryThatForwardKeepsIsAnActivation) {
  const MemoryUse use = memory_use(one_step(), kOneStep, {Place::kDevice});
  EXPECT_EQ(use.lifetimes[1].kind, MemoryKind::kActivations);
  EXPECT_EQ(use.lifetimes[2].kind, MemoryKind::kTemporaries);
  EXPECT_EQ(use.lifetimes[3].kind, MemoryKind::kTemporaries);
}

TEST(MemoryUse, MemoryThatOutlivesTheStepIsKept) {
  const MemoryUse use = memory_use(Tape({born(0, 3), in_backward(born(1, 4))}, {}), {0, 2}, {Place::kDevice});
  EXPECT_EQ(use.lifetimes[0].kind, MemoryKind::kKept);
  EXPECT_EQ(use.lifetimes[1].kind, MemoryKind::kKept);
}

TEST(MemoryUse, EachStepHasAPeakOfItsOwn) {
  const Tape tape({born(0, 50), freed(0), born(1, 8), in_backward(born(2, 4)), in_backward(freed(2)),
                   in_backward(freed(1)), born(3, 6), in_backward(born(4, 1)), in_backward(freed(4))},
                  {});
  const MemoryUse use = memory_use(tape, {2, 6, 9}, {Place::kDevice});
  EXPECT_EQ(use.peak.bytes, 50);
  EXPECT_EQ(use.peak.phase, StepPhase::kSetup);
  ASSERT_EQ(use.peak_of_step.size(), 2);
  EXPECT_EQ(use.peak_of_step[0].bytes, 12);
  EXPECT_EQ(use.peak_of_step[0].phase, StepPhase::kBackward);
  EXPECT_EQ(use.peak_of_step[1].bytes, 7);
}

TEST(MemoryUse, OnlyTheNamedPlacesCount) {
  TapeEntry host = born(1, 40);
  host.place = Place::kHost;
  TapeEntry pinned = born(2, 2);
  pinned.place = Place::kPinnedHost;
  const Tape tape({born(0, 1), host, pinned}, {});
  EXPECT_EQ(memory_use(tape, {3}, {Place::kDevice}).peak.bytes, 1);
  EXPECT_EQ(memory_use(tape, {3}, {Place::kHost, Place::kPinnedHost}).peak.bytes, 42);
}

TEST(DeviceReplay, CountsBlocksAndSegments) {
  const DeviceReplay replay = replay_device_memory(Tape({born(0, 1), born(1, 600), freed(0)}, {}), {});
  EXPECT_EQ(replay.allocated.peak, 512 + 1024);
  EXPECT_EQ(replay.allocated.current, 1024);
  EXPECT_EQ(replay.reserved.peak, 2 << 20);
  EXPECT_FALSE(replay.exhausted_at);
}

TEST(DeviceReplay, StopsWhereMemoryRunsOut) {
  const Tape tape({born(0, 16 << 20), born(1, 16 << 20), born(2, 16 << 20)}, {});
  const DeviceReplay replay = replay_device_memory(tape, {.capacity = 40 << 20});
  EXPECT_EQ(replay.exhausted_at, 2);
  EXPECT_EQ(replay.retries, 1);
}

}  // namespace
}  // namespace fsdp::planner::memory_use_test
