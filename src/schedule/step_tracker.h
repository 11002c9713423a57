// Tracks the passes of a step and the end of each step. Contains no tensors.
#pragma once

#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

namespace fsdp::schedule {

// [Note: steps]
// A pass is a forward or a backward; a step is a sequence of passes at whose end gradients are reduced. Usually it has
// one of each. With gradient accumulation it has one of each for every micro-batch, and on a stage of a pipeline the
// forwards of several micro-batches come before their backwards. The step ends with the first backward that reduces
// gradients of any unit; what follows belongs to the next one, as do forwards for evaluation between two steps.
//
// The end of a step is the same on all ranks, because the options that say which backward reduces are. Inside a step
// each rank may differ in where it is: forwards that follow one another without a backward between them cannot be told
// apart, and count as one pass.
enum class StepState : uint8_t { kBetweenPasses, kForward, kBackward };
const char* to_string(StepState state);

// kForward -> kBackward: a backward ends the forward. kBetweenPasses -> kBackward: a backward without a forward, as of
// a graph that was kept. kBackward -> kBetweenPasses: the backward has ended or was abandoned.
const std::vector<std::pair<StepState, StepState>>& step_transitions();

// Threads: safe.
class StepTracker {
 public:
  // Notes that an operator uses a unit outside of backward.
  void note_forward();
  void begin_backward();
  // `reduces`: whether this backward has reduced gradients, and so ends the step. Does nothing if the backward was
  // abandoned before, as by ShardedModule::reset inside of it.
  void end_backward(bool reduces);
  // Ends a backward that threw. Its step goes on.
  void abandon_backward();

  // The counts below are for reports; decisions that ranks share depend on end_backward alone.
  int64_t steps() const;              // that have ended
  int64_t forwards_of_step() const;   // of the current step, with the one that runs
  int64_t backwards_of_step() const;  // of the current step that have ended

 private:
  void enter(StepState state);

  mutable std::mutex mutex_;
  StepState state_ = StepState::kBetweenPasses;
  int64_t steps_ = 0;
  int64_t forwards_ = 0;
  int64_t backwards_ = 0;
};

}  // namespace fsdp::schedule
