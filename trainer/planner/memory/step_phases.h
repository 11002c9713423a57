// The steps of a tape and their phases.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "planner/tape/tape.h"

namespace fsdp::planner {

enum class StepPhase : uint8_t { kSetup, kForward, kBackward, kUpdate };
const char* to_string(StepPhase phase);

// Tells the step and the phase of each entry. Within a step, all until the last entry of a backward pass that is not
// itself in one counts as forward, and the rest as update. The tape must live as long.
class StepPhases {
 public:
  // `step_bounds`: PlannedRun::step_bounds.
  StepPhases(const Tape& tape, const std::vector<size_t>& step_bounds);

  // Returns -1 before the first step. The entries after the last step count as part of it.
  int step_of(size_t entry) const;
  StepPhase phase_of(size_t entry) const;
  // Returns the first entry from `entry` on at which its step runs backward, or SIZE_MAX if there is none.
  size_t next_backward(size_t entry) const { return next_backward_[entry]; }
  size_t end_of_step(size_t entry) const;
  const std::vector<size_t>& bounds() const { return bounds_; }

 private:
  const std::vector<TapeEntry>& entries_;
  std::vector<size_t> bounds_;
  std::vector<size_t> backward_ends_;  // by step
  std::vector<size_t> next_backward_;  // by entry
};

}  // namespace fsdp::planner
