// Where the allocator gives its free segments back, for the time that this takes.
#include "planner/memory/device_replay.h"

#include <gtest/gtest.h>

namespace fsdp::planner::device_replay_test {
namespace {

TapeEntry taken(int64_t id, int64_t bytes) {
  return {.kind = TapeKind::kAllocation, .stream = 0, .id = id, .bytes = bytes};
}

TapeEntry freed(int64_t id) { return {.kind = TapeKind::kFree, .id = id}; }

// Two free segments of 16 MiB each have no room for 36 MiB, and the device has none beside them.
TEST(AllocatorRetries, NameTheAllocationAndTheSegments) {
  const Tape tape({taken(0, 16 << 20), taken(1, 16 << 20), freed(0), freed(1), taken(2, 36 << 20)}, {});
  const DeviceReplay replay = replay_device_memory(tape, {.capacity = 40 << 20});
  ASSERT_EQ(replay.retried.size(), 1);
  EXPECT_EQ(replay.retried[0].entry, 4);
  EXPECT_EQ(replay.retried[0].segments, 2);
}

TEST(AllocatorRetries, NoneWhereThereIsRoom) {
  const Tape tape({taken(0, 16 << 20), freed(0), taken(1, 36 << 20)}, {});
  EXPECT_TRUE(replay_device_memory(tape, {}).retried.empty());
}

}  // namespace
}  // namespace fsdp::planner::device_replay_test
