#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fsdp/pipeline_schedule.h"
#include "pipeline_schedule/testing/schedule_text.h"
#include "support/faults/error_of.h"

namespace fsdp::pipeline_schedule::simulate_test {
namespace {

using testing::error_of;
using ::testing::HasSubstr;
using testing::schedule_of;

std::vector<StageCosts> equal_costs(int stages, StageCosts costs = {}) {
  return std::vector<StageCosts>(static_cast<size_t>(stages), costs);
}

TEST(SimulatedSchedules, TakeTheTimesOfTheirPasses) {
  const PipelineSchedule schedule = schedule_of("0F0,0B0\n1F0,1B0\n");
  const StageCosts first{.forward = 2, .input_gradient = 3, .weight_gradient = 4, .send = 0.5};
  const StageCosts last{.forward = 10, .input_gradient = 20, .weight_gradient = 30, .send = 0.25};
  const PipelineSimulation simulation = simulate_pipeline(schedule, {first, last});
  EXPECT_DOUBLE_EQ(simulation.of_rank[1][0].begin, 2.5);
  EXPECT_DOUBLE_EQ(simulation.of_rank[1][1].end, 62.5);
  EXPECT_DOUBLE_EQ(simulation.of_rank[0][1].begin, 62.75);
  EXPECT_DOUBLE_EQ(simulation.seconds, 69.75);
  EXPECT_DOUBLE_EQ(simulation.bubble, 1 - (9 + 60) / (2 * 69.75));
}

TEST(SimulatedSchedules, NothingIsSentWithinARank) {
  const PipelineSchedule schedule = schedule_of("0F0,1F0,1B0,0B0\n");
  const PipelineSimulation simulation = simulate_pipeline(schedule, equal_costs(2, {.send = 100}));
  EXPECT_DOUBLE_EQ(simulation.seconds, 6);
  EXPECT_DOUBLE_EQ(simulation.bubble, 0);
}

TEST(SimulatedSchedules, CommunicationTakesNoTimeOfARank) {
  const PipelineSchedule passes = make_pipeline_schedule("1F1B", 3, 1, 5);
  const std::vector<StageCosts> costs = equal_costs(3, {.send = 0.125});
  EXPECT_DOUBLE_EQ(simulate_pipeline(passes, costs).seconds,
                   simulate_pipeline(with_communication(passes), costs).seconds);
}

// Where weight gradients cost nothing there is no bubble to be filled with them.
TEST(SimulatedSchedules, ZeroBubblesAreShorterThanOneForwardOneBackward) {
  const auto bubble = [](const char* name, int stages_per_rank, const StageCosts& costs) {
    const PipelineSchedule schedule = make_pipeline_schedule(name, 4, stages_per_rank, 8);
    return simulate_pipeline(schedule, equal_costs(schedule.stages(), costs)).bubble;
  };
  const StageCosts halves{.forward = 0.5, .input_gradient = 0.5, .weight_gradient = 0.5};
  EXPECT_LT(bubble("InterleavedZeroBubble", 1, {}), bubble("1F1B", 1, {}));
  EXPECT_LT(bubble("ZBVZeroBubble", 2, halves), bubble("InterleavedZeroBubble", 1, {}));
  EXPECT_LT(bubble("Interleaved1F1B", 2, halves), bubble("1F1B", 1, {}));
  const StageCosts without_weights{.weight_gradient = 0};
  EXPECT_DOUBLE_EQ(bubble("InterleavedZeroBubble", 1, without_weights), bubble("1F1B", 1, without_weights));
}

TEST(SimulatedSchedules, WrongArgumentsAreNamed) {
  const PipelineSchedule schedule = make_pipeline_schedule("1F1B", 2, 1, 2);
  EXPECT_THAT(error_of([&] { simulate_pipeline(schedule, equal_costs(3)); }),
              HasSubstr("needs the costs of each of the 2 stages, not of 3"));
  EXPECT_THAT(error_of([&] { simulate_pipeline(schedule_of("0F0,0B0\n1B0,1F0\n"), equal_costs(2)); }),
              HasSubstr("rank 1, action 1 of 2 (1B0): the forward pass of this micro-batch has not run"));
}

}  // namespace
}  // namespace fsdp::pipeline_schedule::simulate_test
