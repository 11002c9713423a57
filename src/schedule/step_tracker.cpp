#include "schedule/step_tracker.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace fsdp::schedule {

const char* to_string(StepState state) {
  switch (state) {
    case StepState::kBetweenPasses:
      return "kBetweenPasses";
    case StepState::kForward:
      return "kForward";
    case StepState::kBackward:
      return "kBackward";
  }
  throw std::logic_error("fsdp: unknown state of a step");
}

const std::vector<std::pair<StepState, StepState>>& step_transitions() {
  using enum StepState;
  static const std::vector<std::pair<StepState, StepState>> table = {
      {kBetweenPasses, kForward}, {kForward, kBackward}, {kBetweenPasses, kBackward}, {kBackward, kBetweenPasses}};
  return table;
}

void StepTracker::enter(StepState state) {
  const auto& legal = step_transitions();
  if (std::find(legal.begin(), legal.end(), std::pair(state_, state)) == legal.end()) {
    throw std::logic_error(std::string("fsdp: illegal transition of a step: ") + to_string(state_) + " -> " +
                           to_string(state) + " (please report this)");
  }
  state_ = state;
}

// A forward inside backward, as of recomputation, is part of the backward.
void StepTracker::note_forward() {
  std::lock_guard lock(mutex_);
  if (state_ != StepState::kBetweenPasses) return;
  enter(StepState::kForward);
  ++forwards_;
}

// Another thread's backward may run already; both are one pass, which ends with the last of them.
void StepTracker::begin_backward() {
  std::lock_guard lock(mutex_);
  if (state_ != StepState::kBackward) enter(StepState::kBackward);
}

void StepTracker::end_backward(bool reduces) {
  std::lock_guard lock(mutex_);
  if (state_ != StepState::kBackward) return;
  enter(StepState::kBetweenPasses);
  ++backwards_;
  if (!reduces) return;
  ++steps_;
  forwards_ = 0;
  backwards_ = 0;
}

void StepTracker::abandon_backward() {
  std::lock_guard lock(mutex_);
  if (state_ == StepState::kBackward) enter(StepState::kBetweenPasses);
}

int64_t StepTracker::steps() const {
  std::lock_guard lock(mutex_);
  return steps_;
}

int64_t StepTracker::forwards_of_step() const {
  std::lock_guard lock(mutex_);
  return forwards_;
}

int64_t StepTracker::backwards_of_step() const {
  std::lock_guard lock(mutex_);
  return backwards_;
}

}  // namespace fsdp::schedule
