// The steps of a training run, on one rank.
#pragma once

#include <memory>

#include "config/config.h"
#include "data/batches.h"
#include "fsdp/fully_shard.h"
#include "models/causal_lm.h"
#include "optim/fused_adamw.h"
#include "training/lr_schedule.h"

namespace fsdp::trainer {

// What one optimizer step measured.
struct StepResult {
  double loss = 0;       // mean over this rank's part of the global batch
  double grad_norm = 0;  // over all ranks, before clipping
  double learning_rate = 0;
};

// Runs optimizer steps on a sharded model. Collective: all ranks run the same steps.
class TrainingRun {
 public:
  // All arguments must outlive this object.
  TrainingRun(const Config& config, models::CausalLM& model, ShardedModule& sharded, TrainBatches& batches);

  // The next step: forward and backward for each batch of the accumulation, clipping, AdamW.
  StepResult step();

 private:
  double accumulate_gradients();

  const Config& config_;
  models::CausalLM& model_;
  ShardedModule& sharded_;
  TrainBatches& batches_;
  LrSchedule schedule_;
  FusedAdamW optimizer_;
  int64_t steps_done_ = 0;
};

}  // namespace fsdp::trainer
