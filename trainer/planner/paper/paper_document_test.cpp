// The paper's statements and volumes beside plans that are made up.
#include "planner/paper/paper_document.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "planner/paper/bandwidth_figure.h"
#include "planner/paper/paper_check.h"
#include "planner/paper/paper_volumes.h"

namespace fsdp::planner::paper_document_test {
namespace {

using nlohmann::ordered_json;
using ::testing::HasSubstr;

// A plan with as much as the figures need. All rates are `tflops`.
ordered_json made_plan(double tflops) {
  return {{"model", {{"parameters", 2'000'000'000}}},
          {"units", {{{"name", "root"}, {"gathered_bytes", 4096}}, {{"name", "a"}, {"gathered_bytes", 8192}}}},
          {"memory",
           {{"device",
             {{"verdict", "fits"},
              {"total", int64_t{3} << 30},
              {"reserved", int64_t{2} << 30},
              {"allocated", int64_t{1} << 30},
              {"allocator_retries", 0}}}}},
          {"time",
           {{"step_seconds", 1.5},
            {"backward_seconds", 1.0},
            {"tflops_per_device", tflops},
            {"hardware_tflops_per_device", tflops},
            {"collectives", ordered_json::array()}}}};
}

PaperPlans made_plans(double tflops) {
  const std::vector<PaperRun> runs = paper_runs();
  std::vector<Answer> answers(runs.size());
  for (size_t i = 0; i < runs.size(); ++i) {
    if (runs[i].name() == dhen_run().name()) {
      answers[i].refusal = "tables <are> large";
    } else {
      answers[i].result = made_plan(tflops);
    }
  }
  return {runs, std::move(answers)};
}

std::string agreement_of(const ordered_json& document, const std::string& what) {
  for (const ordered_json& check : document.at("checks")) {
    if (check.at("what") == what) return check.at("agreement");
  }
  return "no such check";
}

TEST(PaperRuns, AreDifferent) {
  std::set<std::string> names;
  for (const PaperRun& run : paper_runs()) EXPECT_TRUE(names.insert(run.name()).second) << run.name();
}

TEST(PaperRuns, HostsHaveTheNetworkOfThePaper) {
  const Cluster cluster = paper_cluster(64);
  EXPECT_EQ(cluster.ranks(), 512);
  EXPECT_EQ(cluster.links.nic * cluster.links.nics, 250e9);
}

TEST(PaperDocument, StatementsAreJudged) {
  const std::string speed = "175B, batch 1: TFLOP/s of a GPU, model FLOPs";
  const std::string memory = "DDP's memory";
  const ordered_json close = paper_document(made_plans(175)), far = paper_document(made_plans(100));
  EXPECT_EQ(agreement_of(close, speed), "agrees");
  EXPECT_EQ(agreement_of(far, speed), "differs");
  EXPECT_EQ(agreement_of(close, memory), "differs");  // it fits at 11B
  EXPECT_EQ(agreement_of(close, "175B, batch 1: backward's part of a step"), "agrees");
  EXPECT_EQ(agreement_of(close, "T5-11B, batch 8: TFLOP/s of 512 GPUs beside those of 8"), "differs");
}

TEST(PaperDocument, TextAndPageShowEachStatement) {
  const ordered_json document = paper_document(made_plans(175));
  const std::string text = paper_text(document), page = paper_page(document);
  EXPECT_THAT(text, HasSubstr(std::to_string(paper_runs().size()) + " plans"));
  for (const ordered_json& check : document.at("checks")) {
    const auto what = check.at("what").get<std::string>();
    EXPECT_THAT(text, HasSubstr(what));
    EXPECT_THAT(page, HasSubstr(what.substr(0, what.find('\''))));
  }
  for (const ordered_json& figure : document.at("figures")) {
    EXPECT_THAT(page, HasSubstr("<figure id=\"plot-" + figure.at("id").get<std::string>() + "\">"));
  }
  EXPECT_THAT(page, HasSubstr("tables &lt;are&gt; large"));
}

TEST(PaperDocument, AFailedPlanIsAnError) {
  std::vector<Answer> answers(1);
  answers[0].failure = "no memory";
  const PaperPlans plans({gpt_run(128, 1)}, std::move(answers));
  EXPECT_THROW(plans.of(gpt_run(128, 1)), std::runtime_error);
  EXPECT_THROW(plans.of(gpt_run(128, 2)), std::runtime_error);
}

TEST(PaperCheck, RangesIncludeTheirEnds) {
  const AcceptedRange range{.low = -2, .high = 2, .unit = " %"};
  EXPECT_EQ(check_within("f", "w", "p", range, {-2, 2}).agreement, Agreement::kAgrees);
  EXPECT_EQ(check_within("f", "w", "p", range, {0, 2.1}).agreement, Agreement::kDiffers);
  EXPECT_EQ(check_within("f", "w", "p", range, {-0.01, 1}).planned, "0.0 to 1.0 %");
  EXPECT_EQ(range_text({1.04, 0.96}, 1, ""), "1.0");
}

TEST(PaperBandwidth, UnevenInputsCostABroadcastFromEachRank) {
  const Cluster cluster = paper_cluster(2);
  const int64_t elements = int64_t{1} << 24;
  const double even = gather_seconds(GatherForm::kEven, elements, cluster);
  EXPECT_GT(gather_seconds(GatherForm::kList, elements, cluster), even);
  EXPECT_GT(gather_seconds(GatherForm::kUneven, elements, cluster), 2 * even);
  EXPECT_NEAR(split_gather_seconds(elements, cluster), 64 * even, 1e-9);
}

// 4 MiB, of which 1 MiB is gathered once: a rank of 16 sends 15/16 of 11 MiB.
TEST(PaperVolumes, PlansAreExactOrDiffer) {
  constexpr int64_t kMiB = 1 << 20;
  ordered_json plan = made_plan(1);
  plan["units"] = {{{"name", "root"}, {"gathered_bytes", kMiB}}, {{"name", "a"}, {"gathered_bytes", 3 * kMiB}}};
  plan["time"]["collectives"] = {{{"kind", "all-gather"}, {"sent_bytes", 7 * kMiB * 15 / 16}},
                                 {{"kind", "reduce-scatter"}, {"sent_bytes", 4 * kMiB * 15 / 16}}};
  std::vector<PaperRun> runs;
  std::vector<Answer> answers;
  for (const std::string& strategy : volume_strategies()) {
    runs.push_back(volume_run(strategy, 2));
    answers.push_back({.result = plan});
  }
  for (const PaperVolume& volume : paper_volumes(PaperPlans(runs, std::move(answers)), {2})) {
    const bool is_of_plan = volume.strategy == "full_shard";
    EXPECT_EQ(volume_json(volume).at("exact"), is_of_plan) << volume_json(volume);
    if (is_of_plan) {
      EXPECT_EQ(volume.by_formula, 12 * kMiB * 15 / 16);
    }
  }
}

}  // namespace
}  // namespace fsdp::planner::paper_document_test
