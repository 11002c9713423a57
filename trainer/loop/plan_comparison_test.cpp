// What was planned beside what was measured: reading plans, and the table.
#include "loop/plan_comparison.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <regex>

#include "config/errors.h"
#include "support/files/temporary_folder.h"
#include "testing/program.h"
#include "testing/tiny_llama.h"

namespace fsdp::trainer::plan_comparison_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

nlohmann::json small_plan() {
  return nlohmann::json::parse(R"({"model": {"parameters": 10}, "cluster": {"hosts": 2, "ranks_per_host": 2},
    "engine": [{"name": "parameter shards", "peak": 1024}, {"name": "gradient shards", "peak": 2048}],
    "memory": {"host": {"per_host": 8192}}})");
}

PlannedFigures figures(const nlohmann::json& plan) {
  const testing::TemporaryFolder folder;
  return read_planned_figures(folder.write("plan.json", plan.dump()));
}

std::string refusal(const std::function<void()>& act) {
  try {
    act();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(PlanComparison, ReadsPlansOfCpusAndOfDevices) {
  nlohmann::json plan = small_plan();
  EXPECT_EQ(figures(plan).ranks, 4);
  EXPECT_TRUE(figures(plan).on_cpus);
  EXPECT_EQ(figures(plan).bytes, 4096);
  EXPECT_FALSE(figures(plan).step_seconds);
  plan["memory"]["device"]["allocated"] = 512;
  plan["time"]["step_seconds"] = 0.5;
  EXPECT_FALSE(figures(plan).on_cpus);
  EXPECT_EQ(figures(plan).bytes, 512);
  EXPECT_EQ(figures(plan).step_seconds, 0.5);
}

TEST(PlanComparison, OtherFilesAndOtherRunsAreRefused) {
  EXPECT_THAT(refusal([] { figures(nlohmann::json::object()); }), HasSubstr("plan.json: is not a plan"));
  const PlannedFigures planned = figures(small_plan());
  Config config;
  EXPECT_EQ(refusal([&] { check_plan_is_of(planned, config, 4, c10::kCPU, 10); }), "");
  EXPECT_THAT(refusal([&] { check_plan_is_of(planned, config, 2, c10::kCPU, 10); }),
              HasSubstr("of 4 ranks, but this run has 2"));
  EXPECT_THAT(refusal([&] { check_plan_is_of(planned, config, 4, c10::kCUDA, 10); }),
              HasSubstr("on CPUs, but this run has GPUs"));
  EXPECT_THAT(refusal([&] { check_plan_is_of(planned, config, 4, c10::kCPU, 11); }), HasSubstr("10 parameters"));
  nlohmann::json of_pipeline = small_plan();
  of_pipeline.update({{"rank", 2}, {"pipeline", {{"ranks", {0, 2}}}}});
  EXPECT_THAT(refusal([&] { check_plan_is_of(figures(of_pipeline), config, 4, c10::kCPU, 10); }),
              HasSubstr("in 2 part(s) of a pipeline, but this run has 1"));
  config.parallelism.pipeline_degree = 2;
  EXPECT_THAT(refusal([&] { check_plan_is_of(figures(of_pipeline), config, 4, c10::kCPU, 10); }),
              HasSubstr("plan this run with --rank 0"));
  of_pipeline["rank"] = 0;
  EXPECT_EQ(refusal([&] { check_plan_is_of(figures(of_pipeline), config, 4, c10::kCPU, 10); }), "");
}

TEST(PlanComparison, TheTableHasTheCategoriesThatBothHave) {
  PlannedFigures planned = figures(small_plan());
  planned.step_seconds = 0.5;
  const MeasuredFigures measured{
      .categories = {{.name = "parameter shards", .peak = 1024}}, .bytes = 6144, .step_seconds = 0.25};
  const std::string text = comparison_text(planned, measured);
  EXPECT_THAT(text, AllOf(HasSubstr("1.00 KiB    1.00 KiB         ="), Not(HasSubstr("gradient shards")),
                          HasSubstr("4.00 KiB    6.00 KiB   +50.0 %"), HasSubstr("500 ms      250 ms   -50.0 %")));
}

TEST(StepClock, TheFirstStepCountsOnlyIfItIsAlone) {
  StepClock clock;
  EXPECT_TRUE(std::isnan(clock.seconds()));
  EXPECT_EQ(clock.timed([] { return StepResult{.loss = 3}; }).loss, 3);
  EXPECT_GE(clock.seconds(), 0);
}

// The engine's bytes of a real run are those of its plan.
TEST(PlanComparison, ARunPrintsItsPlanBesideItself) {
  const testing::TemporaryFolder folder;
  const nlohmann::json config = {
      {"model", tiny_llama_config(false)}, {"dataset", "dummy:40"}, {"max_steps", 3},        {"max_seq_length", 9},
      {"output_dir", folder.path("out")},  {"save_final", false},   {"comm_backend", "gloo"}};
  const std::string run = " --config-path " + folder.write("run.json", config.dump());
  ASSERT_EQ(run_shell("$FSDP plan --json --cluster 2xcpu" + run + " > " + folder.path("plan.json")).status, 0);
  const ProgramResult result = run_shell("$FSDP train --nproc-per-node 2 --plan " + folder.path("plan.json") + run);
  ASSERT_EQ(result.status, 0) << result.err;
  for (const char* category :
       {"parameter shards", "gradient shards", "unsharded parameters", "gradient buffers", "optimizer state"}) {
    EXPECT_TRUE(std::regex_search(result.out, std::regex(std::string("\n  ") + category + " .* =\n")))
        << category << result.out;
  }
  EXPECT_THAT(result.out, AllOf(HasSubstr("\n  the whole process "), HasSubstr("\n  time of a step ")));
  EXPECT_THAT(run_shell("$FSDP train --nproc-per-node 1 --plan " + folder.path("plan.json") + run).err,
              HasSubstr("of 2 ranks, but this run has 1"));
}

}  // namespace
}  // namespace fsdp::trainer::plan_comparison_test
