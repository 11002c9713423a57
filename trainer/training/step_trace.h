// Records the steps that the config asks to be traced.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "config/config.h"
#include "fsdp/fully_shard.h"

namespace fsdp::trainer {

// Collective: all ranks call the same.
class StepTrace {
 public:
  // For a run of `steps` steps from here. `memory`: what the run holds beside what `sharded` holds. All other arguments
  // must outlive this object, and what `memory` refers to must outlive the steps.
  StepTrace(const Config& config, ShardedModule& sharded, Communicator& communicator, int64_t steps,
            std::function<std::vector<MemoryCategory>()> memory);

  // Whether any step is traced: the config asks for it, and there are as many steps.
  bool traces() const { return config_.trace_path && config_.trace_first_step <= last_step_; }

  // Steps are counted from 1.
  void before_step(int64_t step);
  // After the last step to be traced, writes the file. Something to say of it, or nothing; a file that cannot be
  // written ends no run.
  std::string after_step(int64_t step);
  // After the last step of the run: tries once more to write a trace that could not be written. Why it cannot be;
  // empty: the file is there, or none was asked for.
  std::string finish();

 private:
  // Why the file was not written; empty: it was.
  std::string write();

  const Config& config_;
  ShardedModule& sharded_;
  Communicator& communicator_;
  int64_t last_step_;
  std::function<std::vector<MemoryCategory>()> memory_;
  std::optional<Trace> unwritten_;
};

}  // namespace fsdp::trainer
