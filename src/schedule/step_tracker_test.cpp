// Tests of the passes of steps.
#include "schedule/step_tracker.h"

#include <gtest/gtest.h>

#include <tuple>

namespace fsdp::schedule::step_tracker_test {
namespace {

// The number of steps that have ended, and of forwards and backwards of the current one.
std::tuple<int64_t, int64_t, int64_t> counts_of(const StepTracker& tracker) {
  return {tracker.steps(), tracker.forwards_of_step(), tracker.backwards_of_step()};
}
using Counts = std::tuple<int64_t, int64_t, int64_t>;

void forward_and_backward(StepTracker& tracker, bool reduces) {
  tracker.note_forward();
  tracker.note_forward();
  tracker.begin_backward();
  tracker.end_backward(reduces);
}

TEST(StepTracker, StepEndsWithTheBackwardThatReduces) {
  StepTracker tracker;
  forward_and_backward(tracker, true);
  EXPECT_EQ(counts_of(tracker), (Counts{1, 0, 0}));
  tracker.note_forward();
  EXPECT_EQ(counts_of(tracker), (Counts{1, 1, 0}));
  tracker.begin_backward();
  tracker.end_backward(true);
  EXPECT_EQ(counts_of(tracker), (Counts{2, 0, 0}));
}

TEST(StepTracker, MicroBatchesAreOneStep) {
  StepTracker tracker;
  forward_and_backward(tracker, false);
  forward_and_backward(tracker, false);
  EXPECT_EQ(counts_of(tracker), (Counts{0, 2, 2}));
  forward_and_backward(tracker, true);
  EXPECT_EQ(counts_of(tracker), (Counts{1, 0, 0}));
}

TEST(StepTracker, BackwardsMayFollowWithoutAForward) {
  StepTracker tracker;
  tracker.note_forward();
  for (int micro_batch = 0; micro_batch < 3; ++micro_batch) {
    tracker.begin_backward();
    tracker.end_backward(false);
  }
  EXPECT_EQ(counts_of(tracker), (Counts{0, 1, 3}));
}

TEST(StepTracker, ForwardInsideBackwardIsPartOfIt) {
  StepTracker tracker;
  tracker.begin_backward();
  tracker.note_forward();
  tracker.begin_backward();  // another thread's
  tracker.end_backward(false);
  EXPECT_EQ(counts_of(tracker), (Counts{0, 0, 1}));
}

TEST(StepTracker, AbandonedBackwardLeavesTheStepOpen) {
  StepTracker tracker;
  forward_and_backward(tracker, false);
  tracker.note_forward();
  tracker.begin_backward();
  tracker.abandon_backward();
  tracker.end_backward(true);  // of a backward that was abandoned inside
  EXPECT_EQ(counts_of(tracker), (Counts{0, 2, 1}));
  tracker.abandon_backward();
  forward_and_backward(tracker, true);
  EXPECT_EQ(counts_of(tracker), (Counts{1, 0, 0}));
}

}  // namespace
}  // namespace fsdp::schedule::step_tracker_test
