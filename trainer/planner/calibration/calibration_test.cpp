// Compares measured operators with the kernels of plans, and reads a calibration as plans do.
#include <gmock/gmock.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "planner/calibration/calibration_models.h"
#include "planner/calibration/host_fit.h"
#include "planner/run/planned_run.h"
#include "planner/target/cluster_file.h"
#include "planner/testing/kernel_json.h"
#include "planner/testing/small_models.h"
#include "support/files/project_paths.h"
#include "support/files/temporary_folder.h"
#include "testing/program.h"

namespace fsdp::planner::calibration_test {
namespace {

using comm::CollectiveKind;
using nlohmann::json;
using ::testing::Contains;

json measured(const std::string& mode, const json& config) {
  const testing::TemporaryFolder folder;
  const auto result = trainer::run_shell(testing::build_folder() + "/planner_measured_ranks " + mode + " " +
                                         folder.write("config.json", config.dump()));
  EXPECT_EQ(result.status, 0) << result.err;
  return json::parse(result.out);
}

std::map<std::string, int> counts(const json& list) {
  std::map<std::string, int> counts;
  for (const json& one : list) ++counts[one.dump()];
  return counts;
}

// Returns the kernels that one has more often than the other, and how much more.
std::map<std::string, int> difference(const json& planned, const json& measured) {
  std::map<std::string, int> difference = counts(planned);
  for (const auto& [kernel, count] : counts(measured)) difference[kernel] -= count;
  std::erase_if(difference, [](const auto& one) { return one.second == 0; });
  return difference;
}

json planned_kernels(const json& config) {
  PlannedRun run(read_json(config), {.has_device = false, .layout = {.world = 1, .per_host = 1}, .threads = 1});
  for (int step = 0; step < 3; ++step) run.step();
  json kernels = json::array();
  for (size_t i = run.step_bounds()[2]; i < run.step_bounds()[3]; ++i) {
    const TapeEntry& entry = run.tape().entries()[i];
    if (entry.kind != TapeKind::kKernel) continue;
    const ProductWork* work = entry.id < 0 ? nullptr : &run.tape().products().at(static_cast<size_t>(entry.id));
    kernels.push_back(kernel_json(run.tape().name(entry), entry.bytes, work));
  }
  return kernels;
}

class MeasuredOperators : public ::testing::TestWithParam<std::string> {};

// By name, bytes and sizes of products. In other types, plans have conversions of whole units, too, which happen inside
// the operator that first needs a unit.
TEST_P(MeasuredOperators, OfARealStepAreThoseOfThePlan) {
  const json config = small_config(GetParam(), {{"dtype", "fp32"}, {"clip_grad_norm", 1}});
  const json planned = planned_kernels(config);
  EXPECT_GT(planned.size(), 100);
  EXPECT_THAT(difference(planned, measured("operators", config)), ::testing::IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(, MeasuredOperators, ::testing::ValuesIn(small_model_names()),
                         [](const auto& info) { return info.param; });

MATCHER_P3(IsExchange, kind, path, ranks, "") {
  return arg.kind == kind && arg.path == path && arg.ranks == ranks && arg.points.size() == 2 &&
         arg.points.back().seconds > 0;
}

TEST(Calibration, OfTwoRanksIsAFileThatPlansRead) {
  const json config = small_config("llama", {{"dtype", "fp32"}});
  const testing::TemporaryFolder folder;
  const std::string file = folder.write("cpu.json", measured("calibrate", config).dump());
  const Cluster cluster = read_cluster(file);
  EXPECT_EQ(cluster.ranks_per_host, 2);
  EXPECT_EQ(cluster.provenances.at("spread"), Provenance::kCalibrated);
  EXPECT_EQ(cluster.provenances.at("cpu.products"), Provenance::kCalibrated);
  EXPECT_EQ(cluster.provenances.at("cpu.exchanges"), Provenance::kMeasured);
  ASSERT_TRUE(cluster.host_speed);
  EXPECT_FALSE(cluster.host_speed->products.empty());
  const std::vector<ExchangeCurve>& exchanges = cluster.host_speed->exchanges;
  EXPECT_THAT(exchanges, Contains(IsExchange(CollectiveKind::kAllGather, HostPath::kInPlace, 2)));
  for (const HostPath path : {HostPath::kMemory, HostPath::kGloo}) {
    for (const CollectiveKind kind : {CollectiveKind::kAllGather, CollectiveKind::kReduceScatter,
                                      CollectiveKind::kAllReduce, CollectiveKind::kBroadcast}) {
      EXPECT_THAT(exchanges, Contains(IsExchange(kind, path, 2)));
    }
  }
  const trainer::ProgramResult plan =
      trainer::run_shell("$FSDP plan --json --cluster " + file + " " + folder.write("c.json", config.dump()));
  ASSERT_EQ(plan.status, 0) << plan.err;
  const json document = json::parse(plan.out);
  const json& time = document.at("time");
  EXPECT_GT(time.at("compute_seconds"), 0.1 * time.at("step_seconds").get<double>());
  EXPECT_GT(time.at("exposed_communication_seconds"), 0);
  EXPECT_EQ(time.at("marks").at("step_seconds").at("mark"), "calibrated");
}

TEST(Calibration, RunsOfAllRanksFitTheirConfigs) {
  EXPECT_GE(calibration_runs(at::kFloat).size(), 10);
  for (const trainer::Config& config : calibration_runs(at::kBFloat16)) {
    EXPECT_EQ(config.precision.dtype, at::kBFloat16);
  }
  EXPECT_FALSE(sharded_calibration_runs().empty());
}

OperatorSample sample(const std::string& name, int64_t bytes, double seconds) {
  return {.name = name, .bytes = bytes, .work = {}, .seconds = seconds};
}

TEST(HostFit, HeldUpCallsDoNotCount) {
  EXPECT_DOUBLE_EQ(usual_mean({1, 2, 3, 4}), 2.5);
  EXPECT_DOUBLE_EQ(usual_mean({2, 2, 5, 2, 90}), 11.0 / 4);
  EXPECT_DOUBLE_EQ(usual_mean({7}), 7);
}

TEST(HostFit, CurvesHaveAPointForSimilarBytes) {
  HostSpeed speed;
  fit_operators(
      {sample("a", 1000, 1), sample("a", 1001, 3), sample("a", 4000, 9), sample("a", 0, 0.5), sample("b", 1000, 5)},
      at::kHalf, speed);
  ASSERT_EQ(speed.operators.size(), 3);
  EXPECT_EQ(speed.operators[0].name, "a");
  EXPECT_EQ(speed.operators[0].dtype, at::kHalf);
  EXPECT_EQ(speed.operators[0].points, (TimeCurve{{0, 0.5}, {1001, 2}, {4000, 9}}));
  EXPECT_EQ(speed.operators[2].name, kOtherOperators);
  EXPECT_EQ(speed.operators[2].points, (TimeCurve{{0, 0.5}, {1000, 3}, {4000, 9}}));
}

TEST(HostFit, StepsGiveTheScalesAndTheTimeOfTheHost) {
  const auto step = [](at::ScalarType dtype, double scale, double operators, double count) {
    return ExplainedStep{dtype, scale * operators + 2e-5 * count, operators, count};
  };
  const StepFit fit = fit_steps({step(at::kFloat, 1.25, 0.1, 100), step(at::kFloat, 1.25, 0.2, 1000),
                                 step(at::kBFloat16, 1.5, 0.3, 10), step(at::kBFloat16, 1.5, 0.1, 700)});
  EXPECT_NEAR(fit.scales.at(at::kFloat), 1.25, 1e-9);
  EXPECT_NEAR(fit.scales.at(at::kBFloat16), 1.5, 1e-9);
  EXPECT_NEAR(fit.host_per_operator, 2e-5, 1e-12);
}

TEST(HostFit, ASingleStepGivesTheTimeOfTheHost) {
  const StepFit fit = fit_steps({{at::kFloat, 1, 0.75, 1000}});
  EXPECT_DOUBLE_EQ(fit.scales.at(at::kFloat), 1);
  EXPECT_DOUBLE_EQ(fit.host_per_operator, 0.25 / 1000);
}

TEST(HostFit, TheTimeOfTheHostIsNotNegative) {
  const StepFit fit = fit_steps({{at::kFloat, 0.9, 1, 1000}, {at::kFloat, 1, 1, 10}});
  EXPECT_EQ(fit.host_per_operator, 0);
  EXPECT_NEAR(fit.scales.at(at::kFloat), (0.9 + 1) / (1 + 1), 0.01);
}

TEST(HostFit, ProductsOfEqualSizesAreOne) {
  const ProductWork work{.m = 2, .n = 3, .k = 4, .flops = 48}, other{.m = 5, .n = 3, .k = 4, .flops = 120};
  HostSpeed speed;
  fit_operators({{.name = "mm", .work = work, .seconds = 1},
                 {.name = "mm", .work = work, .seconds = 2},
                 {.name = "mm", .work = other, .seconds = 7},
                 sample("a", 1, 1)},
                at::kFloat, speed);
  EXPECT_EQ(speed.products, (std::vector<TimedProduct>{{work, 1.5}, {other, 7}}));
  EXPECT_EQ(speed.operators.size(), 2);  // a, and others
}

}  // namespace
}  // namespace fsdp::planner::calibration_test
