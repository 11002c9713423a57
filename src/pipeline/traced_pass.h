// The passes of a stage, and its waits for messages, in a trace.
#pragma once

#include <cstdint>
#include <string>

#include "fsdp/pipeline.h"
#include "pipeline/stage_runner.h"

namespace fsdp::pipeline {

// A pass from its begin, in seconds since the step began.
class TracedPass {
 public:
  TracedPass(const StageRunner& stage, double begin) : stage_(stage), begin_(begin), traced_(stage.trace().now()) {}

  // Records the pass in the trace.
  PipelinePass ended(const PipelineAction& action, double end) const;

 private:
  const StageRunner& stage_;
  const double begin_;
  const int64_t traced_;
};

// Returns what `take` returns, which may wait for `message`, and records the wait.
template <typename Take>
auto traced_wait(const StageRunner& stage, const std::string& message, Pass pass, const Take& take) {
  const int64_t begin = stage.trace().now();
  auto taken = take();
  stage.trace().record(TraceTrack::kStageWait, message, pass, begin, stage.index());
  return taken;
}

}  // namespace fsdp::pipeline
