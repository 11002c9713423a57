// Memory from moment to moment, of hand-made tapes.
#include "planner/memory/memory_course.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <utility>

namespace fsdp::planner::memory_course_test {
namespace {

using base::AllocationPurpose;
using ::testing::ElementsAre;
using ::testing::Pair;

TapeEntry born(int64_t id, int64_t bytes, AllocationPurpose purpose = AllocationPurpose::kOther) {
  return {.kind = TapeKind::kAllocation, .purpose = purpose, .stream = 0, .id = id, .bytes = bytes};
}
TapeEntry freed(int64_t id) { return {.kind = TapeKind::kFree, .id = id}; }
TapeEntry in_backward(TapeEntry entry) {
  entry.backward = true;
  return entry;
}

// Entries from the step's begin, and bytes.
std::vector<std::pair<size_t, int64_t>> points(const MemoryCourse& course) {
  std::vector<std::pair<size_t, int64_t>> points;
  for (const MemoryMoment& moment : course.moments) points.emplace_back(moment.entry - course.begin, moment.bytes);
  return points;
}

TEST(MemoryCourse, BeginsWithTheMemoryThatIsThere) {
  const Tape tape({born(0, 100, AllocationPurpose::kShards), born(1, 5), freed(1), born(2, 10), in_backward(born(3, 4)),
                   in_backward(freed(2)), freed(3)},
                  {});
  const MemoryCourse course = memory_use(tape, {1, 3, 7}, {Place::kDevice}).course;
  EXPECT_EQ(course.begin, 3);
  EXPECT_EQ(course.end, 7);
  EXPECT_THAT(points(course), ElementsAre(Pair(0, 110), Pair(1, 114), Pair(2, 104), Pair(3, 100)));
  EXPECT_EQ(course.moments[1].phase, StepPhase::kBackward);
  EXPECT_EQ(course.moments[1].by_kind[static_cast<size_t>(MemoryKind::kActivations)], 10);
  EXPECT_EQ(course.moments[3].by_kind[static_cast<size_t>(MemoryKind::kShards)], 100);
}

TEST(MemoryCourse, ThinningKeepsTheHighestAndTheLowestMoments) {
  std::vector<TapeEntry> entries;
  for (int64_t id = 0; id < 1000; ++id) {
    entries.push_back(born(id, id == 700 ? 50 : 1 + id % 3));
    entries.push_back(freed(id));
  }
  const Tape tape(entries, {});
  const std::vector<size_t> bounds = {0, entries.size()};
  const MemoryUse use = memory_use(tape, bounds, {Place::kDevice});
  const MemoryCourse course = course_of_last_step(use.lifetimes, StepPhases(tape, bounds), 10);
  EXPECT_EQ(course.moments.size(), 20);
  int64_t most = 0, least = 100;
  for (const MemoryMoment& moment : course.moments) {
    most = std::max(most, moment.bytes);
    least = std::min(least, moment.bytes);
  }
  EXPECT_EQ(most, use.peak_of_step.back().bytes);
  EXPECT_EQ(least, 0);
}

TEST(MemoryCourse, IsEmptyWithoutSteps) {
  EXPECT_TRUE(memory_use(Tape({born(0, 1)}, {}), {1}, {Place::kDevice}).course.moments.empty());
}

}  // namespace
}  // namespace fsdp::planner::memory_course_test
