// How far a stage has come with each micro-batch while a schedule is gone through.
#pragma once

#include <string>
#include <vector>

#include "fsdp/pipeline_schedule.h"

namespace fsdp::pipeline_schedule {

class StageProgress {
 public:
  explicit StageProgress(int micro_batches) : states_(static_cast<size_t>(micro_batches)) {}

  // Takes a pass, or the reduction of gradients. Returns what is wrong with it, or an empty text.
  std::string take(const PipelineAction& action);

  // What is missing at the end, or an empty text.
  std::string missing() const;

  // Micro-batches between their forward pass and their last backward pass.
  int in_flight() const { return in_flight_; }

 private:
  enum class State : uint8_t { kNew, kForwarded, kInputGradientMade, kBackwarded };

  std::string take_pass(PipelineActionKind kind, State& state);
  bool all_backwarded() const;

  std::vector<State> states_;
  int in_flight_ = 0;
  bool reduced_ = false;
};

}  // namespace fsdp::pipeline_schedule
