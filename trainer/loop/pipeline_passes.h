// Passes through the stages of a pipeline.
#pragma once

#include <memory>

#include "config/config.h"
#include "fsdp/pipeline.h"
#include "loop/step_passes.h"
#include "models/staged_lm.h"
#include "setup/pipeline_layout.h"

namespace fsdp::trainer {

// A stage of this rank.
struct TrainedStage {
  int index = 0;  // in the order of the model
  models::StagedLM& model;
  std::shared_ptr<ShardedModule> sharded;
};

class PipelinePasses final : public StepPasses {
 public:
  // `config`, `layout` and the models of `stages` must outlive this object. `names`: the parameters
  // of the whole model, and those that two stages share.
  PipelinePasses(const StepsConfig& config, const DeviceMesh& mesh, const PipelineLayout& layout,
                 const std::vector<TrainedStage>& stages, const PipelineOptions& names);

  std::vector<ShardedModule*> sharded() const override { return sharded_; }
  std::optional<double> accumulate_gradients(TrainBatches& batches, ShardedGradScaler& scaler) override;
  GradientNorm grad_norm(ShardedGradScaler& scaler, bool others_not_finite) override;
  std::vector<double> losses(const std::vector<Batch>& batches) override;
  int64_t most_batches() const override { return config_.gradient_accumulation_steps; }
  std::optional<double> bubble() const override { return pipeline_->bubble(); }

 private:
  PipelineStage stage_of(const TrainedStage& stage, const models::StagePart& part);

  const StepsConfig& config_;
  std::vector<ShardedModule*> sharded_;
  std::unique_ptr<Pipeline> pipeline_;
  // Of the current step, by micro-batch:
  std::vector<TrainBatches::WeightedBatch> batches_;
  ShardedGradScaler* scaler_ = nullptr;  // null: no backward follows
};

}  // namespace fsdp::trainer
