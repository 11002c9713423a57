#include "loop/whole_passes.h"

#include <ATen/ops/mul.h>

namespace fsdp::trainer {

WholePasses::WholePasses(const StepsConfig& config, const TrainedModel& model, ShardedModule& sharded)
    : config_(config), model_(model), sharded_(sharded) {
  sharded.set_reductions_see_norm(true);
}

std::optional<double> WholePasses::accumulate_gradients(TrainBatches& batches, ShardedGradScaler& scaler) {
  const double share = 1.0 / static_cast<double>(config_.gradient_accumulation_steps);
  double loss_sum = 0;
  for (int64_t pass = 0; pass < config_.gradient_accumulation_steps; ++pass) {
    const auto [batch, weight] = batches.next();
    const at::Tensor loss = forward(batch);
    const auto traced = sharded_.tracing().range("backward");
    sharded_.backward(scaler.scale(loss * (share * weight)), backward_options(pass));
    loss_sum += loss.item<double>() * weight;
  }
  return loss_sum * share;
}

at::Tensor WholePasses::forward(const Batch& batch) {
  const auto traced = sharded_.tracing().range("forward");
  return model_.loss(batch);
}

BackwardOptions WholePasses::backward_options(int64_t pass) const {
  const bool is_last = pass + 1 == config_.gradient_accumulation_steps;
  return {.requires_gradient_sync = is_last || config_.sync_each_batch,
          .requires_all_reduce = is_last || config_.all_reduce_each_batch};
}

StepPasses::GradientNorm WholePasses::grad_norm(ShardedGradScaler& scaler, bool others_not_finite) {
  return {.norm = scaler.unscaled_grad_norm(sharded_, others_not_finite), .scale = scaler.scale()};
}

std::vector<double> WholePasses::losses(const std::vector<Batch>& batches) {
  std::vector<double> losses;
  for (const Batch& batch : batches) losses.push_back(model_.loss(batch).item<double>());
  return losses;
}

}  // namespace fsdp::trainer
