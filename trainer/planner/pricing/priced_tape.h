// The tape with times: the work of the host, of streams and of links, ready to be replayed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "planner/memory/device_replay.h"
#include "planner/memory/memory_use.h"
#include "planner/pricing/kernel_price.h"
#include "planner/tape/tape.h"
#include "planner/target/cluster.h"
#include "planner/time/replay.h"
#include "planner/time/step_time.h"

namespace fsdp::planner {

// The stream that computes: LibTorch's default stream.
constexpr int kComputeStream = 0;

// The begin of a phase: a record on the stream that computes.
struct PhaseMark {
  size_t item = 0;
  int step = 0;
  StepPhase phase = StepPhase::kForward;
};

struct PricedTape {
  Replay replay;  // flow i is that of collective i of the tape
  // By item of the replay. Several may be of one entry.
  std::vector<size_t> entries;
  std::vector<WorkKind> kinds;  // of kernels
  std::vector<double> least;    // KernelPrice::least
  // The records between which the steps lie: one more than there are steps.
  std::vector<size_t> step_marks;
  std::vector<PhaseMark> phase_marks;
  // The streams of the tape, by the replay's.
  std::vector<int> streams;

  // Returns the first item of this entry, or of a later one.
  size_t first_item_of(size_t entry) const;
};

// The cluster has times. Prices all from step_bounds.front() on; what comes before, setup, is not replayed. A wait for
// a collective waits for the conversion of its sum, too. At a retry of the allocator, the host waits for the device and
// then frees and allocates. Throws a std::invalid_argument for collectives that the cluster's links cannot carry.
PricedTape price_tape(const Tape& tape, const std::vector<size_t>& step_bounds, const Cluster& cluster,
                      const std::vector<AllocatorRetry>& retries, const KernelOptions& options = {});

}  // namespace fsdp::planner
