// The steps of a training run, on one rank.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "config/config.h"
#include "data/batches.h"
#include "fsdp/fully_shard.h"
#include "fsdp/grad_scaler.h"
#include "optim/fused_adamw.h"
#include "training/lr_schedule.h"
#include "training/trained_model.h"

namespace fsdp::trainer {

// What one optimizer step measured.
struct StepResult {
  double loss = 0;       // this rank's part of the mean over the global batch: the mean over ranks is that
  double grad_norm = 0;  // over all ranks, before clipping
  double learning_rate = 0;
  std::optional<double> loss_scale = std::nullopt;  // of this step, with fp16
  bool skipped = false;  // a gradient overflowed: weights, AdamW's state and the schedule stay as they are
};

// Runs optimizer steps on a sharded model. Collective: all ranks run the same steps.
class TrainingRun {
 public:
  // All arguments must outlive this object.
  TrainingRun(const Config& config, const TrainedModel& model, ShardedModule& sharded, TrainBatches& batches);

  // The next step: forward and backward for each batch of the accumulation, unscaling, clipping, AdamW,
  // and the optimizer of separate parameters.
  StepResult step();

  // What a checkpoint keeps of it beside the optimizer's state.
  struct Progress {
    int64_t updates = 0;                                         // steps that were not skipped
    std::optional<GradScalerState> loss_scaling = std::nullopt;  // with fp16: scale and growth tracker count
  };
  // What of the model is not in its shards (SeparateParameters::split_tensors).
  std::vector<SplitTensor> split_tensors() const;
  Progress progress() const { return {updates_, scaler_.state_dict()}; }
  // Without loss_scaling, or with no fp16 now: that starts as the config says.
  void set_progress(const Progress& progress);
  // Refers to this object, which must outlive it.
  std::unique_ptr<OptimizerState> optimizer_state() { return optimizer_.named_state(); }

  // What it holds beside what `sharded` holds.
  std::vector<MemoryCategory> memory() const;

 private:
  double accumulate_gradients();
  // Over all parameters, unscaled. Collective.
  double unscaled_grad_norm();
  // AdamW on the shards, and what separate parameters bring.
  void update(double clipping);
  at::Tensor forward(const Batch& batch);
  BackwardOptions backward_options(int64_t pass) const;

  const Config& config_;
  const TrainedModel& model_;
  ShardedModule& sharded_;
  SeparateParameters* separate_;  // null: the model has none
  TrainBatches& batches_;
  LrSchedule schedule_;
  std::optional<LrSchedule> separate_schedule_;
  FusedAdamW optimizer_;
  ShardedGradScaler scaler_;
  int64_t updates_ = 0;  // steps that were not skipped
};

}  // namespace fsdp::trainer
