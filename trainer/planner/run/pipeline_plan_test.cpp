// Processes that plan the ranks of a pipeline. The suite's name makes it run before others start threads.
#include "planner/run/pipeline_plan.h"

#include <gmock/gmock.h>

#include <cstdlib>
#include <stdexcept>
#include <string>

#include "config/errors.h"

namespace fsdp::planner::pipeline_plan_test {
namespace {

TEST(PipelinePlanDeathTest, TheFirstErrorOfARankIsThatOfThePlan) {
  const auto plan = [](int rank, PlannedPeers& peers) -> nlohmann::ordered_json {
    if (rank == 1) throw trainer::ConfigError("key \"x\" is wrong");
    peers.take("a message that never comes");
    return {};
  };
  EXPECT_THAT([&] { plan_pipeline({.stages = 3}, plan); },
              ::testing::ThrowsMessage<trainer::ConfigError>("key \"x\" is wrong"));
}

TEST(PipelinePlanDeathTest, AFailureNamesItsRank) {
  const auto plan = [](int rank, PlannedPeers&) -> nlohmann::ordered_json {
    if (rank == 5) std::abort();
    return {};
  };
  EXPECT_THAT([&] { plan_pipeline({.stages = 3, .of_stage = 2, .chosen = 1}, plan); },
              ::testing::ThrowsMessage<std::runtime_error>(::testing::HasSubstr("rank 5 of the pipeline: ")));
}

TEST(PipelinePlanDeathTest, TheRankThatNeedsMostMemoryIsShownUnlessOneFitsLess) {
  int worst = -1;
  const auto plan = [&](int rank, PlannedPeers& peers) -> nlohmann::ordered_json {
    const std::string long_text(5'000'000, static_cast<char>('a' + rank));
    for (const std::string& text : peers.gather(long_text)) EXPECT_EQ(text.size(), long_text.size());
    return {{"rank", rank},
            {"stage", {{"bytes", rank == 2 ? 9 : rank}, {"verdict", rank == worst ? "tight" : "fits"}}}};
  };
  EXPECT_EQ(plan_pipeline({.stages = 3, .of_stage = 2}, plan).at("rank"), 2);
  EXPECT_EQ(plan_pipeline({.stages = 3, .of_stage = 2, .chosen = 5}, plan).at("rank"), 5);
  worst = 4;
  EXPECT_EQ(plan_pipeline({.stages = 3, .of_stage = 2}, plan).at("rank"), 4);
}

}  // namespace
}  // namespace fsdp::planner::pipeline_plan_test
