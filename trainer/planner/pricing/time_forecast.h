// The time of a planned run's steps.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "planner/pricing/priced_tape.h"

namespace fsdp::planner {

// The collectives of one kind in one group, in one step.
struct CollectiveSum {
  comm::CollectiveKind kind = comm::CollectiveKind::kAllGather;
  Topology topology;
  int64_t count = 0;
  int64_t bytes = 0;   // of the larger tensors
  int64_t sent = 0;    // by each rank, in a ring
  double seconds = 0;  // on their streams
  double alone = 0;    // the same if each had its links for itself
};

struct PhaseTime {
  double forward = 0;
  double backward = 0;
  double update = 0;
};

struct TimeForecast {
  PricedTape priced;
  ReplayResult result;
  std::vector<StepTime> steps;
  // Of the last step, which is like all later ones.
  PhaseTime phases;  // on the stream that computes, without the spread of ranks
  std::vector<CollectiveSum> collectives;
  // A step cannot take less: its kernels on the stream that computes, at the peak rates of the data sheets.
  double least = 0;
};

// The cluster has times. `retries`: those of the memory replay. `replay`: run_replay, or a function that replays this
// rank with those that it meets.
TimeForecast forecast_time(const Tape& tape, const std::vector<size_t>& step_bounds, const Cluster& cluster,
                           const std::vector<AllocatorRetry>& retries, const KernelOptions& options = {},
                           const std::function<ReplayResult(const Replay&)>& replay = run_replay);

}  // namespace fsdp::planner
