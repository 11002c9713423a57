// `fsdp plan` of pipelines, as a program.
#include <gmock/gmock.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "report_page/step_timeline.h"
#include "support/files/temporary_folder.h"
#include "testing/program.h"

namespace fsdp::trainer::plan_pipeline_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const std::string kRun =
    "$FSDP plan --no-changes --model smollm2-135m --set max_seq_length=256 --set train_batch_size=1 "
    "--set gradient_accumulation_steps=8 --set dtype=bf16 --set sharding_strategy=shard_grad_op --cluster 8xh100 ";
const std::string kPipeline = kRun + "--set pipeline_parallel_degree=4 ";

nlohmann::json planned(const std::string& command) {
  const ProgramResult result = run_shell(command + " --json");
  EXPECT_EQ(result.status, 0) << result.err;
  return nlohmann::json::parse(result.out, nullptr, /*allow_exceptions=*/false);
}

const nlohmann::json& plan_of_pipeline() {
  static const nlohmann::json plan = planned(kPipeline);
  return plan;
}
const nlohmann::json& plan_of_whole_model() {
  static const nlohmann::json plan = planned(kRun);
  return plan;
}

TEST(PlanOfPipelineCommand, EachRankHasItsStage) {
  const nlohmann::json &whole = plan_of_whole_model(), &plan = plan_of_pipeline();
  const nlohmann::json& ranks = plan["pipeline"]["ranks"];
  ASSERT_EQ(ranks.size(), 4);
  int64_t parameters = 0, most = 0;
  for (const nlohmann::json& rank : ranks) {
    parameters += rank["parameters"].get<int64_t>();
    most = std::max(most, rank["bytes"].get<int64_t>());
    EXPECT_NEAR(rank["step_seconds"], plan["time"]["step_seconds"], 0.05 * rank["step_seconds"].get<double>());
    EXPECT_LT(rank["compute_seconds"], rank["step_seconds"]);
  }
  constexpr int64_t kTied = 49152 * 576;  // the embedding, which the last stage also has
  EXPECT_EQ(plan["model"]["parameters"], whole["model"]["parameters"]);
  EXPECT_EQ(parameters, whole["model"]["parameters"].get<int64_t>() + kTied);
  EXPECT_EQ(plan["memory"]["device"]["total"], most);
  EXPECT_EQ(ranks[0]["stages"][0], "embedding, blocks 0 to 6");
}

TEST(PlanOfPipelineCommand, TheRankThatNeedsMostMemoryIsShownUnlessOneIsChosen) {
  const nlohmann::json &plan = plan_of_pipeline(), chosen = planned(kPipeline + "--rank 4");
  EXPECT_EQ(chosen["rank"], 4);
  EXPECT_EQ(chosen["memory"]["device"]["total"], plan["pipeline"]["ranks"][2]["bytes"]);
  EXPECT_EQ(chosen["pipeline"]["ranks"][2]["rank"], 4);
  EXPECT_NE(plan["rank"], 4);
  EXPECT_EQ(planned(kPipeline + "--rank 5")["pipeline"]["ranks"][3]["rank"], 7);
  for (const nlohmann::json& rank : plan["pipeline"]["ranks"]) {
    if (rank["rank"] == plan["rank"]) EXPECT_EQ(rank["bytes"], plan["memory"]["device"]["total"]);
  }
}

// Of as many micro-batches, each of twice as many blocks: the time without bubbles would be the same.
TEST(PlanOfPipelineCommand, MoreMicroBatchesMakeTheBubbleSmaller) {
  const auto busy = [](int micro_batches) {
    const nlohmann::json time =
        planned(kPipeline + "--set pipeline_parallel_schedule=GPipe --rank 2 --set train_batch_size=8 " +
                "--set gradient_accumulation_steps=" + std::to_string(micro_batches))["time"];
    return time["compute_seconds"].get<double>() / time["step_seconds"].get<double>();
  };
  EXPECT_LT(busy(4) + 0.1, busy(16));
}

TEST(PlanOfPipelineCommand, RatesCountTheSamplesOfEachPipelineOnce) {
  const nlohmann::json &plan = plan_of_pipeline(), &whole = plan_of_whole_model();
  const auto tokens = [](const nlohmann::json& of) {
    return of["time"]["tokens_per_second"].get<double>() * of["time"]["step_seconds"].get<double>();
  };
  EXPECT_NEAR(4 * tokens(plan), tokens(whole), 1e-6 * tokens(whole));
}

TEST(PlanOfPipelineCommand, MessagesCountForTheirSenders) {
  const nlohmann::json last = planned(kPipeline + "--rank 6"), first = planned(kPipeline + "--rank 0");
  const auto messages = [](const nlohmann::json& plan) {
    for (const nlohmann::json& sum : plan["time"]["collectives"]) {
      if (sum["kind"] == "message") return sum;
    }
    return nlohmann::json();
  };
  constexpr int64_t kHidden = 256 * 576 * 2;
  // Eight gradients, and that of the tied embedding, of which the data-parallel rank has a half.
  EXPECT_EQ(messages(last)["count"], 9);
  EXPECT_EQ(messages(last)["bytes"], 8 * kHidden + 49152 * 576 / 2 * 4);
  EXPECT_EQ(messages(first)["count"], 9);  // the sizes of activations travel between the hosts
  EXPECT_EQ(messages(first)["bytes"], messages(last)["bytes"]);
}

TEST(PlanOfPipelineCommand, TableTimelineAndPageAreOfTheSameRank) {
  const testing::TemporaryFolder folder;
  const std::string trace = folder.path("trace.json"), page = folder.path("page.html");
  const ProgramResult result = run_shell(kPipeline + "--trace " + trace + " --html " + page);
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("ranks of the pipeline (1F1B, 8 micro-batches)"),
                                HasSubstr("% of the step; fits; embedding, blocks 0 to 6")));
  EXPECT_TRUE(read_step_timeline(trace));
  const nlohmann::json& plan = plan_of_pipeline();
  EXPECT_THAT(folder.read("page.html"),
              AllOf(HasSubstr("Rank " + plan["rank"].dump() + " was planned"), HasSubstr("Ranks of the pipeline")));
}

TEST(PlanOfPipelineCommand, SearchesPlanPipelines) {
  const nlohmann::json found = planned(
      "$FSDP plan --model smollm2-135m --set max_seq_length=64 --set pipeline_parallel_degree=2 --cluster 4xh100 "
      "--set gradient_accumulation_steps=4 --search --search-limit 4");
  EXPECT_GT(found["search"]["counts"]["planned"], 0);
  EXPECT_EQ(found["search"]["counts"]["failed"], 0);
}

TEST(PlanOfPipelineCommand, ErrorsNameTheMistake) {
  const auto expect_error = [](const std::string& arguments, const std::string& text) {
    const ProgramResult result = run_shell("$FSDP plan " + arguments);
    EXPECT_EQ(result.status, 2) << arguments;
    EXPECT_THAT(result.err, HasSubstr(text)) << arguments;
  };
  const std::string model = "--model smollm2-135m --cluster 8xh100 --set pipeline_parallel_degree=";
  expect_error(model + "3", "does not divide 8 rank(s)");
  expect_error(model + "4 --set pipeline_parallel_layers_per_stage=7", "makes 5 stage(s) of 32 blocks");
  expect_error("--model t5-611m --cluster 8xh100 --set pipeline_parallel_degree=2", "only causal language models");
  expect_error(model + "2 --rank 8", "ranks 0 to 7");
}

}  // namespace
}  // namespace fsdp::trainer::plan_pipeline_test
