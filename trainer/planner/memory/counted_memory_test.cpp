// A plan for ranks on CPUs predicts the peak of the bytes that tensors take in real ranks.
#include <gmock/gmock.h>

#include <cmath>
#include <fstream>
#include <map>

#include "planner/memory/memory_use.h"
#include "planner/run/planned_run.h"
#include "planner/testing/small_models.h"
#include "support/files/project_paths.h"
#include "support/files/temporary_folder.h"
#include "testing/program.h"

namespace fsdp::planner::counted_memory_test {
namespace {

using nlohmann::json;

constexpr int kSteps = 3;

// Those of the cases that every build runs. benchmarks/planned_memory.py runs all.
std::vector<json> cases_of_build() {
  const json file = json::parse(std::ifstream(testing::source_folder() + "/trainer/planner/testing/memory_cases.json"));
  std::vector<json> runs;
  for (const json& one : file.at("cases")) {
    if (!one.value("in_build", false)) continue;
    const auto model = one.at("model").get<std::string>();
    json config = {
        {"model", file.at("models").at(model)}, {"device", "cpu"}, {"comm_backend", "gloo"}, {"check_memory", false}};
    config.update(file.at("keys").at(model));
    config.update(one.at("set"));
    runs.push_back({{"name", one.at("name")}, {"config", config}, {"ranks", one.at("ranks")}, {"steps", kSteps}});
  }
  return runs;
}

json counted(const std::vector<json>& runs) {
  const testing::TemporaryFolder folder;
  const auto result = trainer::run_shell(testing::build_folder() + "/planner_counted_ranks " +
                                         folder.write("runs.json", json(runs).dump()));
  EXPECT_EQ(result.status, 0) << result.err;
  return json::parse(result.out);
}

std::vector<int64_t> planned_peaks(const json& run) {
  const int ranks = run.at("ranks");
  PlannedRun plan(read_json(run.at("config")), {.has_device = false, .layout = {ranks, ranks}, .threads = 1});
  for (int step = 0; step < kSteps; ++step) plan.step();
  std::vector<int64_t> peaks;
  for (const MemoryMoment& peak : memory_use(plan.tape(), plan.step_bounds(), {Place::kHost}).peak_of_step) {
    peaks.push_back(peak.bytes);
  }
  return peaks;
}

TEST(CountedMemory, PeaksEqualThoseOfRealRanks) {
  const std::vector<json> runs = cases_of_build();
  ASSERT_FALSE(runs.empty());
  const json real = counted(runs);
  double sum = 0;
  for (size_t i = 0; i < runs.size(); ++i) {
    SCOPED_TRACE(runs[i].at("name").get<std::string>());
    const json& rank = real.at(i).at(0);
    ASSERT_TRUE(rank.contains("steps")) << rank.dump();
    const std::vector<int64_t> planned = planned_peaks(runs[i]);
    double worst = 0;
    for (int step = 0; step < kSteps; ++step) {
      const double counted_bytes = rank["steps"].at(static_cast<size_t>(step));
      worst = std::max(worst, std::abs(static_cast<double>(planned.at(static_cast<size_t>(step))) / counted_bytes - 1));
    }
    EXPECT_LE(worst, 0.02) << "planned " << json(planned).dump() << ", counted " << rank["steps"].dump();
    sum += worst;
  }
  EXPECT_LE(sum / static_cast<double>(runs.size()), 0.01);
}

}  // namespace
}  // namespace fsdp::planner::counted_memory_test
