// A program for tests of calibration, which computes, as a process that plans cannot.
//
//   planner_measured_ranks operators CONFIG   prints the operators of one step of one rank: a list of {"name", "bytes"}
//                                             and, of products, "sizes"
//   planner_measured_ranks calibrate CONFIG   calibrates two ranks with this run alone, and prints the cluster's file
//
// CONFIG: a JSON file with a training config.
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "planner/calibration/calibrated_host.h"
#include "planner/calibration/measured_run.h"
#include "planner/target/cluster_file.h"
#include "planner/testing/kernel_json.h"
#include "planner/testing/small_models.h"
#include "support/ranks/thread_ranks.h"

namespace fsdp::planner {
namespace {

nlohmann::json operators_of(const trainer::Config& config) {
  nlohmann::json operators = nlohmann::json::array();
  testing::run_ranks(1, [&](std::shared_ptr<Communicator> rank) {
    const MeasuredRun run = measure_run(config, {.world = rank, .group = rank, .steps = 0, .observed_steps = 1});
    for (const OperatorSample& sample : run.operators.front()) {
      operators.push_back(kernel_json(sample.name, sample.bytes, sample.work ? &*sample.work : nullptr));
    }
  });
  return operators;
}

int print_calibration(const trainer::Config& config) {
  const CalibratedHost host = calibrate_host(2, {.runs = {{.dtype = config.precision.dtype, .configs = {config}}},
                                                 .sizes = {256, 70'000},
                                                 .sharded = {config},
                                                 .steps = 3});
  if (!host.cluster) return host.status;
  std::printf("%s\n", cluster_json(*host.cluster).dump().c_str());
  return EXIT_SUCCESS;
}

int run(const std::string& mode, const char* file) {
  const trainer::Config config = read_json(nlohmann::json::parse(std::ifstream(file)));
  if (mode == "calibrate") return print_calibration(config);
  std::printf("%s\n", operators_of(config).dump().c_str());
  return EXIT_SUCCESS;
}

}  // namespace
}  // namespace fsdp::planner

int main(int argc, char** argv) { return argc == 3 ? fsdp::planner::run(argv[1], argv[2]) : 2; }
