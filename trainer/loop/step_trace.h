// Records the steps that the config asks to trace.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "config/config.h"
#include "fsdp/fully_shard.h"

namespace fsdp::trainer {

// Ends the recording of all parts, and returns their traces in one.
Trace stop_tracing(const std::vector<ShardedModule*>& parts);

// All functions are collective.
class StepTrace {
 public:
  // Traces a run of `steps` further steps. `parts`: the parts of the model that this rank trains. `memory`: returns the
  // memory that the run holds in addition to theirs. All other arguments, and the parts, must outlive this object, and
  // the objects that `memory` refers to must outlive the steps.
  StepTrace(const TraceConfig& config, std::vector<ShardedModule*> parts, Communicator& communicator, int64_t steps,
            std::function<std::vector<MemoryCategory>()> memory);

  // Whether any step is traced: the config asks for a trace, and the run is long enough.
  bool traces() const { return config_.path && config_.first_step <= last_step_; }

  // Steps are counted from 1.
  void before_step(int64_t step);
  // Writes the file after the last traced step. Returns a message for the user, or an empty string. A file that cannot
  // be written does not end the run.
  std::string after_step(int64_t step);
  // Must be called after the last step of the run. Tries once more to write a trace that could not be written. Returns
  // the reason if it cannot be written, or an empty string if the file exists or no trace was asked for.
  std::string finish();

 private:
  void start();
  // Returns why the file was not written, or an empty string if it was.
  std::string write();

  const TraceConfig& config_;
  std::vector<ShardedModule*> parts_;
  Communicator& communicator_;
  int64_t last_step_;
  std::function<std::vector<MemoryCategory>()> memory_;
  std::optional<Trace> unwritten_;
};

}  // namespace fsdp::trainer
