// The time of one step, in parts that add up to it.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "planner/time/replay.h"

namespace fsdp::planner {

// The kinds of kernels that a step's computation consists of.
enum class WorkKind : uint8_t { kMatrixProducts, kAttention, kMemoryBound, kCopies, kOptimizer };
constexpr size_t kWorkKinds = 5;
const char* to_string(WorkKind kind);

// Seconds on the stream that computes, but for `spread`, which follows from the other ranks.
struct StepTime {
  double compute = 0;     // kernels run
  double exposed = 0;     // a collective of this stream runs, or the stream waits for another one's
  double host_bound = 0;  // the host has not issued the next work
  double spread = 0;      // until the slowest rank has computed
  double idle = 0;
  std::array<double, kWorkKinds> by_kind{};  // of `compute`

  double seconds() const { return compute + exposed + host_bound + spread + idle; }
};

// The interval of a step: between two records of the stream that computes.
struct StepInterval {
  size_t first = 0;  // indices of the records' items
  size_t last = 0;
};

// `kinds`: of the kernels, by item. `spread`: the expected delay of the slowest rank, as a part of `compute`.
StepTime step_time(const Replay& replay, const ReplayResult& result, const std::vector<WorkKind>& kinds,
                   const StepInterval& step, double spread);

}  // namespace fsdp::planner
