// The steps of a training run, on one rank.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "config/config.h"
#include "data/batches.h"
#include "fsdp/fully_shard.h"
#include "fsdp/grad_scaler.h"
#include "loop/lr_schedule.h"
#include "loop/step_passes.h"
#include "optim/optimizer.h"
#include "tasks/trained_model.h"

namespace fsdp::trainer {

// The results of one optimizer step.
struct StepResult {
  // This rank's part: its mean over the ranks that have one is the mean over the global batch. Only ranks of a pipeline
  // without the last stage have none.
  std::optional<double> loss = std::nullopt;
  double grad_norm = 0;  // over all ranks, before clipping
  double learning_rate = 0;
  std::optional<double> loss_scale = std::nullopt;  // used by this step; only with fp16
  bool skipped = false;  // a gradient overflowed: weights, optimizer state and the schedule stay as they are
};

// Runs optimizer steps on a sharded model. Collective: all ranks run the same steps.
class TrainingRun {
 public:
  // Trains what `passes` run through. `separate`: null if the model has none. All arguments must outlive this object.
  TrainingRun(const Config& config, StepPasses& passes, SeparateParameters* separate, TrainBatches& batches);

  // Runs the next step: the passes of each batch of the accumulation, unscaling, clipping, and the optimizers of the
  // shards and of separate parameters.
  StepResult step();

  // The state that a checkpoint stores in addition to the optimizer's state.
  struct Progress {
    int64_t updates = 0;                                         // steps that were not skipped
    std::optional<GradScalerState> loss_scaling = std::nullopt;  // with fp16: scale and growth tracker count
  };
  // Returns the tensors of the model that are not in its shards (SeparateParameters::split_tensors).
  std::vector<SplitTensor> split_tensors() const;
  Progress progress() const { return {updates_, scaler_.state_dict()}; }
  // Restores the progress. Without loss_scaling, or if this run does not use fp16, loss scaling starts as the config
  // says.
  void set_progress(const Progress& progress);
  // Returns state that refers to this object, which must outlive it.
  std::unique_ptr<OptimizerState> optimizer_state() { return optimizer_->named_state(); }

  // Returns the memory that this object holds in addition to that of the sharded model.
  std::vector<MemoryCategory> memory() const;

 private:
  // Returns the norm of the unscaled gradients of all parameters. Collective.
  StepPasses::GradientNorm grad_norm();
  // Runs the optimizers of the shards and of separate parameters with `gradient_scale` times the gradients.
  void update(double gradient_scale);

  const Config& config_;
  StepPasses& passes_;
  SeparateParameters* separate_;  // null: the model has none
  TrainBatches& batches_;
  LrSchedule schedule_;
  std::optional<LrSchedule> separate_schedule_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  ShardedGradScaler scaler_;
  int64_t updates_ = 0;  // steps that were not skipped
};

}  // namespace fsdp::trainer
