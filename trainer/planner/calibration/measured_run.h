// Real steps of a run on this machine, timed.
#pragma once

#include <memory>
#include <vector>

#include "config/config.h"
#include "fsdp/communicator.h"
#include "planner/calibration/operator_times.h"

namespace fsdp::planner {

struct MeasureOptions {
  std::shared_ptr<Communicator> world;  // of all ranks of the host, which begin each step together
  std::shared_ptr<Communicator> group;  // of the ranks over which the model is sharded
  int steps = 3;                        // after those that differ from later ones
  int observed_steps = 0;               // further ones, whose operators are timed
};

struct MeasuredRun {
  std::vector<double> seconds;                         // of each step
  std::vector<std::vector<OperatorSample>> operators;  // of each observed step, in no order
};

// Trains on made-up data. Collective over the world.
MeasuredRun measure_run(const trainer::Config& config, const MeasureOptions& options);

}  // namespace fsdp::planner
