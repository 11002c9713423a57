#include "loop/step_trace.h"

#include <algorithm>
#include <utility>

namespace fsdp::trainer {

Trace stop_tracing(const std::vector<ShardedModule*>& parts) {
  Trace all = parts.front()->tracing().stop();
  for (size_t i = 1; i < parts.size(); ++i) {
    const Trace further = parts[i]->tracing().stop();
    all.ranges.insert(all.ranges.end(), further.ranges.begin(), further.ranges.end());
  }
  return all;
}

StepTrace::StepTrace(const TraceConfig& config, std::vector<ShardedModule*> parts, Communicator& communicator,
                     int64_t steps, std::function<std::vector<MemoryCategory>()> memory)
    : config_(config),
      parts_(std::move(parts)),
      communicator_(communicator),
      last_step_(std::min(config.first_step + config.steps - 1, steps)),
      memory_(std::move(memory)) {}

void StepTrace::before_step(int64_t step) {
  if (traces() && step == config_.first_step) start();
}

// Samples of the first part's trace contain the memory of all parts.
void StepTrace::start() {
  for (size_t i = 1; i < parts_.size(); ++i) parts_[i]->tracing().start();
  parts_.front()->tracing().start([this] {
    std::vector<MemoryCategory> all = memory_();
    for (size_t i = 1; i < parts_.size(); ++i) {
      for (MemoryCategory& category : parts_[i]->diagnostics().memory()) all.push_back(std::move(category));
    }
    return all;
  });
}

std::string StepTrace::after_step(int64_t step) {
  if (!traces() || step != last_step_) return {};
  unwritten_ = stop_tracing(parts_);
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
