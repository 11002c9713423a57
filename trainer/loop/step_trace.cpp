#include "loop/step_trace.h"

#include <algorithm>
#include <utility>

namespace fsdp::trainer {

StepTrace::StepTrace(const TraceConfig& config, ShardedModule& sharded, Communicator& communicator, int64_t steps,
                     std::function<std::vector<MemoryCategory>()> memory)
    : config_(config),
      sharded_(sharded),
      communicator_(communicator),
      last_step_(std::min(config.first_step + config.steps - 1, steps)),
      memory_(std::move(memory)) {}

void StepTrace::before_step(int64_t step) {
  if (traces() && step == config_.first_step) sharded_.tracing().start(memory_);
}

std::string StepTrace::after_step(int64_t step) {
  if (!traces() || step != last_step_) return {};
  unwritten_ = sharded_.tracing().stop();
  const std::string problem = write();
  if (problem.empty()) return "wrote a trace to " + *config_.path;
  return problem + "; training continues, and writing the trace is tried again after the last step";
}

std::string StepTrace::finish() { return unwritten_ ? write() : ""; }

std::string StepTrace::write() {
  try {
    write_trace(*config_.path, communicator_, *unwritten_);
    unwritten_.reset();
    return {};
  } catch (const TraceNotWritten& error) {
    return error.what_without_backtrace();
  }
}

}  // namespace fsdp::trainer
