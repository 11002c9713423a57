// Steps that can be worked out by hand.
#include "planner/time/step_time.h"

#include <gtest/gtest.h>

namespace fsdp::planner::step_time_test {
namespace {

constexpr double kTolerance = 1e-9;
constexpr int kCompute = 0, kGather = 1;

// A record, work, a record; neither launches nor, unless `host` says so, the host take time.
class Step {
 public:
  Step() {
    replay.streams = 2;
    replay.launch_delay = 0;
    mark();
  }
  void kernel(double seconds, WorkKind kind, double host = 0) {
    add({.stream = kCompute, .host = host, .duration = seconds}, kind);
  }
  // A collective of `seconds`, and a wait for it.
  void collective(int stream, double seconds) {
    replay.flows.push_back({.latency = seconds});
    add({.kind = ReplayKind::kCollective, .stream = stream, .flow = static_cast<int>(replay.flows.size()) - 1});
    add({.kind = ReplayKind::kRecord, .stream = stream, .event = 7});
  }
  void wait() { add({.kind = ReplayKind::kStreamWait, .stream = kCompute, .event = 7}); }
  size_t mark() { return add({.kind = ReplayKind::kRecord, .stream = kCompute, .event = -1}); }

  StepTime time(double spread = 0) {
    const size_t last = mark();
    return step_time(replay, run_replay(replay), kinds, {0, last}, spread);
  }

  Replay replay;
  std::vector<WorkKind> kinds;

 private:
  size_t add(ReplayItem item, WorkKind kind = WorkKind::kMemoryBound) {
    replay.items.push_back(item);
    kinds.push_back(kind);
    return kinds.size() - 1;
  }
};

void expect_parts(const StepTime& step, double compute, double exposed, double host_bound, double idle) {
  EXPECT_NEAR(step.compute, compute, kTolerance);
  EXPECT_NEAR(step.exposed, exposed, kTolerance);
  EXPECT_NEAR(step.host_bound, host_bound, kTolerance);
  EXPECT_NEAR(step.idle, idle, kTolerance);
}

TEST(StepTime, KernelsByKind) {
  Step step;
  step.kernel(3, WorkKind::kMatrixProducts);
  step.kernel(2, WorkKind::kOptimizer);
  step.kernel(4, WorkKind::kMatrixProducts);
  const StepTime time = step.time();
  expect_parts(time, 9, 0, 0, 0);
  EXPECT_NEAR(time.by_kind[static_cast<size_t>(WorkKind::kMatrixProducts)], 7, kTolerance);
  EXPECT_NEAR(time.by_kind[static_cast<size_t>(WorkKind::kOptimizer)], 2, kTolerance);
  EXPECT_EQ(time.by_kind[static_cast<size_t>(WorkKind::kAttention)], 0);
}

// 5 of communication, of which 3 are hidden.
TEST(StepTime, CommunicationThatComputationDoesNotHide) {
  Step step;
  step.collective(kGather, 5);
  step.kernel(3, WorkKind::kMatrixProducts);
  step.wait();
  step.kernel(1, WorkKind::kMatrixProducts);
  expect_parts(step.time(), 4, 2, 0, 0);
}

TEST(StepTime, CollectivesOfTheStreamThatComputesAreExposed) {
  Step step;
  step.kernel(3, WorkKind::kMatrixProducts);
  step.collective(kCompute, 2);
  expect_parts(step.time(), 3, 2, 0, 0);
}

TEST(StepTime, AHostThatIsLate) {
  Step step;
  step.kernel(1, WorkKind::kMatrixProducts);
  step.kernel(1, WorkKind::kMatrixProducts, 5);
  expect_parts(step.time(), 2, 0, 4, 0);
}

TEST(StepTime, TheSpreadIsAPartOfTheComputation) {
  Step step;
  step.collective(kCompute, 2);
  step.kernel(10, WorkKind::kMatrixProducts);
  const StepTime time = step.time(0.03);
  EXPECT_NEAR(time.spread, 0.3, kTolerance);
  EXPECT_NEAR(time.seconds(), 12.3, kTolerance);
}

}  // namespace
}  // namespace fsdp::planner::step_time_test
