// Tests when samples of memory are taken, with given times.
#include "base/trace_recorder.h"

#include <gtest/gtest.h>

namespace fsdp::base::trace_recorder_test {
namespace {

constexpr int64_t kMicrosecond = 1000;

// Requests a sample every 10 microseconds, after costly samples that used up what is free. The samples cost the times
// in `costs`, of which the last one repeats. Returns how many of 1000 requested samples are taken.
int taken(const std::vector<int64_t>& costs) {
  SamplePace pace;
  int64_t now = 0;
  for (int i = 0; i < 14; ++i, now += 5000 * kMicrosecond) pace.note(now, now + (i < 13 ? 5000 * kMicrosecond : 0));
  size_t count = 0;
  for (int wanted = 0; wanted < 1000; ++wanted, now += 10 * kMicrosecond) {
    if (pace.allows(now)) {
      const int64_t cost = costs[std::min(count++, costs.size() - 1)];
      pace.note(now, now + cost);
      now += cost;
    }
  }
  return static_cast<int>(count);
}

// The first three of these samples count as free, because each may have been interrupted.
TEST(SamplePace, CostlySamplesAreTakenForFiftyMilliseconds) {
  SamplePace pace;
  int64_t now = 0;
  int count = 0;
  for (; count < 1000 && pace.allows(now); ++count, now += 5000 * kMicrosecond) {
    pace.note(now, now + 5000 * kMicrosecond);
  }
  EXPECT_EQ(count, 3 + 10);
}

TEST(SamplePace, CheapSamplesAreAllTaken) {
  EXPECT_EQ(taken({0}), 1000);
  EXPECT_EQ(taken({49 * kMicrosecond}), 1000);
}

TEST(SamplePace, AnInterruptedSampleHoldsNoOtherBack) {
  EXPECT_EQ(taken({9000 * kMicrosecond, kMicrosecond}), 1000);
  EXPECT_EQ(taken({kMicrosecond, 9000 * kMicrosecond, 8000 * kMicrosecond, 7000 * kMicrosecond, kMicrosecond}), 1000);
}

// Each sample accounts for ten times its own duration: a sample of 100 microseconds is followed by 900 microseconds
// without samples.
TEST(SamplePace, CostlySamplesTakeATenthOfTheTime) {
  EXPECT_NEAR(taken({100 * kMicrosecond}), 1000 / 90, 6);
  EXPECT_NEAR(taken({1000 * kMicrosecond}), 4 + 1, 2);
}

}  // namespace
}  // namespace fsdp::base::trace_recorder_test
