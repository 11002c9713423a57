// Passes through a model of which each rank has all layers.
#pragma once

#include "config/config.h"
#include "loop/step_passes.h"
#include "tasks/trained_model.h"

namespace fsdp::trainer {

class WholePasses final : public StepPasses {
 public:
  // All arguments must outlive this object.
  WholePasses(const StepsConfig& config, const TrainedModel& model, ShardedModule& sharded);

  std::vector<ShardedModule*> sharded() const override { return {&sharded_}; }
  std::optional<double> accumulate_gradients(TrainBatches& batches, ShardedGradScaler& scaler) override;
  GradientNorm grad_norm(ShardedGradScaler& scaler, bool others_not_finite) override;
  std::vector<double> losses(const std::vector<Batch>& batches) override;
  int64_t most_batches() const override { return 1; }

 private:
  at::Tensor forward(const Batch& batch);
  BackwardOptions backward_options(int64_t pass) const;

  const StepsConfig& config_;
  const TrainedModel& model_;
  ShardedModule& sharded_;
};

}  // namespace fsdp::trainer
