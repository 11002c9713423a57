#include "training/step_trace.h"

#include <algorithm>
#include <utility>

namespace fsdp::trainer {

StepTrace::StepTrace(const Config& config, ShardedModule& sharded, Communicator& communicator, int64_t steps,
                     std::function<std::vector<MemoryCategory>()> memory)
    : config_(config),
      sharded_(sharded),
      communicator_(communicator),
      last_step_(std::min(config.trace_first_step + config.trace_steps - 1, steps)),
      memory_(std::move(memory)) {}

void StepTrace::before_step(int64_t step) {
  if (traces() && step == config_.trace_first_step) sharded_.start_trace(memory_);
}

bool StepTrace::after_step(int64_t step) {
  if (!traces() || step != last_step_) return false;
  write_trace(*config_.trace_path, communicator_, sharded_.stop_trace());
  return true;
}

}  // namespace fsdp::trainer
