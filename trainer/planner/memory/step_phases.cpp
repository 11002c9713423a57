#include "planner/memory/step_phases.h"

#include <algorithm>
#include <array>

namespace fsdp::planner {

const char* to_string(StepPhase phase) {
  constexpr std::array kNames = {"setup", "forward", "backward", "update"};
  return kNames.at(static_cast<size_t>(phase));
}

StepPhases::StepPhases(const Tape& tape, const std::vector<size_t>& step_bounds)
    : entries_(tape.entries()), bounds_(step_bounds), next_backward_(entries_.size(), SIZE_MAX) {
  for (size_t step = 0; step + 1 < bounds_.size(); ++step) {
    size_t end = bounds_[step], next = SIZE_MAX;
    for (size_t i = bounds_[step + 1]; i-- > bounds_[step];) {
      if (entries_[i].backward) {
        next = i;
        end = std::max(end, i + 1);
      }
      next_backward_[i] = next;
    }
    backward_ends_.push_back(end);
  }
}

int StepPhases::step_of(size_t entry) const {
  const auto after = std::upper_bound(bounds_.begin(), bounds_.end(), entry);
  const auto step = static_cast<int>(after - bounds_.begin()) - 1;
  return std::min(step, static_cast<int>(backward_ends_.size()) - 1);
}

StepPhase StepPhases::phase_of(size_t entry) const {
  const int step = step_of(entry);
  if (step < 0) return StepPhase::kSetup;
  if (entries_[entry].backward) return StepPhase::kBackward;
  return entry < backward_ends_[static_cast<size_t>(step)] ? StepPhase::kForward : StepPhase::kUpdate;
}

size_t StepPhases::end_of_step(size_t entry) const {
  const int step = step_of(entry);
  return step < 0 ? bounds_.front() : bounds_[static_cast<size_t>(step) + 1];
}

}  // namespace fsdp::planner
