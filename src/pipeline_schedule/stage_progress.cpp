#include "pipeline_schedule/stage_progress.h"

#include <algorithm>

namespace fsdp::pipeline_schedule {

using Kind = PipelineActionKind;

std::string StageProgress::take(const PipelineAction& action) {
  if (computes(action.kind)) return take_pass(action.kind, states_[static_cast<size_t>(*action.micro_batch)]);
  if (action.kind != Kind::kReduceGradients) return "";
  if (reduced_) return "the stage's gradients have been reduced before";
  reduced_ = true;
  return all_backwarded() ? "" : "the stage's gradients are reduced before its last backward pass";
}

std::string StageProgress::take_pass(Kind kind, State& state) {
  switch (kind) {
    case Kind::kForward:
      if (state != State::kNew) return "the forward pass of this micro-batch has run before";
      state = State::kForwarded;
      ++in_flight_;
      return "";
    case Kind::kBackward:
    case Kind::kInputGradient:
      if (state == State::kNew) return "the forward pass of this micro-batch has not run";
      if (state != State::kForwarded) return "the backward pass of this micro-batch has run before";
      state = kind == Kind::kBackward ? State::kBackwarded : State::kInputGradientMade;
      break;
    default:
      if (state != State::kInputGradientMade) return "a W needs the I of its micro-batch before it, and stands once";
      state = State::kBackwarded;
  }
  if (state == State::kBackwarded) --in_flight_;
  return "";
}

bool StageProgress::all_backwarded() const {
  return std::all_of(states_.begin(), states_.end(), [](State state) { return state == State::kBackwarded; });
}

std::string StageProgress::missing() const {
  for (size_t i = 0; i < states_.size(); ++i) {
    const std::string of = " of micro-batch " + std::to_string(i) + " is missing";
    if (states_[i] == State::kNew) return "the forward pass" + of;
    if (states_[i] == State::kForwarded) return "the backward pass" + of;
    if (states_[i] == State::kInputGradientMade) return "the pass W" + of;
  }
  return "";
}

}  // namespace fsdp::pipeline_schedule
