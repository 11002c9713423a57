// Records the steps that the config asks to be traced.
#pragma once

#include <cstdint>

#include "config/config.h"
#include "fsdp/fully_shard.h"

namespace fsdp::trainer {

// Collective: all ranks call the same.
class StepTrace {
 public:
  // All arguments must outlive this object.
  StepTrace(const Config& config, ShardedModule& sharded, Communicator& communicator);

  void before_step(int64_t step);
  // After the last step to be traced, writes the file. Whether it did.
  bool after_step(int64_t step);

 private:
  bool traces() const { return config_.trace_path.has_value(); }

  const Config& config_;
  ShardedModule& sharded_;
  Communicator& communicator_;
  int64_t last_step_;
};

}  // namespace fsdp::trainer
