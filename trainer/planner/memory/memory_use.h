// Where the memory of a planned run goes: how much at most, when, and for which purpose.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "planner/memory/step_phases.h"
#include "planner/tape/tape.h"

namespace fsdp::planner {

// The purposes of base::AllocationPurpose, and what the model allocates, by how long it lives.
enum class MemoryKind : uint8_t {
  kShards,
  kGradientShards,
  kUnshardedParameters,
  kGradientBuffers,
  kOptimizerState,
  kCommunication,
  kActivations,  // made in forward, alive when backward begins
  kKept,         // buffers of the model, and all else that outlives the step
  kTemporaries,
};
constexpr size_t kMemoryKinds = 9;
const char* to_string(MemoryKind kind);

// One allocation, from its entry on the tape to the entry that frees it.
struct Lifetime {
  int64_t id = 0;
  int64_t bytes = 0;
  int32_t maker = -1;  // an index into Tape::names(); -1: none
  size_t born = 0;
  size_t freed = SIZE_MAX;  // SIZE_MAX: not within the tape
  MemoryKind kind = MemoryKind::kTemporaries;
};

// The state at one moment.
struct MemoryMoment {
  size_t entry = 0;
  int step = -1;  // -1: before the first
  StepPhase phase = StepPhase::kSetup;
  int64_t bytes = 0;
  std::array<int64_t, kMemoryKinds> by_kind{};
};

// The state at moments of one step, in order; each lasts until the next one.
struct MemoryCourse {
  size_t begin = 0;  // of the step's entries on the tape
  size_t end = 0;
  std::vector<MemoryMoment> moments;
};

struct MemoryUse {
  std::vector<Lifetime> lifetimes;         // in order of birth
  std::vector<MemoryMoment> peak_of_step;  // as many as there are steps
  MemoryMoment peak;                       // over the whole run, setup included
  std::vector<size_t> largest_at_peak;     // up to ten indices of `lifetimes`, the largest first
  MemoryCourse course;                     // over the last step
};

// Adds up the bytes that were requested in these places. `step_bounds`: PlannedRun::step_bounds.
MemoryUse memory_use(const Tape& tape, const std::vector<size_t>& step_bounds, const std::vector<Place>& places);

}  // namespace fsdp::planner
