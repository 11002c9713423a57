// Measures how fast ranks compute and communicate on the CPUs of this host.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "config/config.h"
#include "fsdp/communicator.h"
#include "planner/target/cluster.h"

namespace fsdp::planner {

// The runs of models that compute in one dtype.
struct CalibrationRuns {
  at::ScalarType dtype = at::kFloat;
  std::vector<trainer::Config> configs;
};

struct CalibrationOptions {
  std::vector<CalibrationRuns> runs;
  std::vector<int64_t> sizes;            // of collectives, in bytes
  std::vector<trainer::Config> sharded;  // runs of all ranks together
  int steps = 7;                         // of each run, and of those of one rank as many whose operators are timed
  // Called before each part, with its name. May be empty.
  std::function<void(const std::string&)> progress = {};
};

// Returns runs in fp32 and bf16, which take about a minute on two processors.
CalibrationOptions usual_calibration();

struct Calibration {
  Cluster cluster;              // without a spread of ranks
  std::vector<double> sharded;  // seconds of a step of each run of CalibrationOptions::sharded
};

// Measures the host of `world`, on which all of its ranks are. While operators are timed, each rank trains a model of
// its own, so that they share processors and memory as they would in a run. Collective; each rank gets its own
// figures.
Calibration calibrate(const std::shared_ptr<Communicator>& world, const CalibrationOptions& options);

// Returns the spread of ranks with which plans of these runs take as long as they did: the median over the runs. Ranks
// wait for one another at each collective, so that it is more than steps of one rank differ. Must be called before this
// process starts threads.
double fitted_spread(const Calibration& calibration, const std::vector<trainer::Config>& sharded);

}  // namespace fsdp::planner
