// The passes of a step through the model: forward and backward for each batch of the accumulation.
#pragma once

#include <optional>
#include <vector>

#include "data/batches.h"
#include "fsdp/fully_shard.h"
#include "fsdp/grad_scaler.h"

namespace fsdp::trainer {

// All functions are collective, with the same calls on all ranks.
class StepPasses {
 public:
  struct GradientNorm {
    double norm = 0;   // of the unscaled gradients of all parameters, over all ranks
    double scale = 1;  // that of the loss, by which the gradients are still multiplied
  };

  virtual ~StepPasses() = default;

  // What this rank trains: the whole model, or stages of it.
  virtual std::vector<ShardedModule*> sharded() const = 0;
  // Adds up the gradients of the batches of a step. Returns the mean of their losses by their weights, or nothing on
  // ranks of a pipeline that do not have the last stage.
  virtual std::optional<double> accumulate_gradients(TrainBatches& batches, ShardedGradScaler& scaler) = 0;
  // `others_not_finite`: see ShardedGradScaler::unscaled_grad_norm.
  virtual GradientNorm grad_norm(ShardedGradScaler& scaler, bool others_not_finite) = 0;

  // Returns the losses of batches, forward only, or nothing on ranks without the last stage. `batches`: at most
  // most_batches(), as many on all ranks.
  virtual std::vector<double> losses(const std::vector<Batch>& batches) = 0;
  virtual int64_t most_batches() const = 0;

  // The share of the last step in which a rank of the pipeline ran no pass, on average; nothing without a pipeline.
  virtual std::optional<double> bubble() const { return std::nullopt; }
};

}  // namespace fsdp::trainer
