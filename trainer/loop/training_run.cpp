#include "loop/training_run.h"

#include <ATen/ops/mul.h>

#include <cmath>

#include "optim/clip_scale.h"
#include "optimizers/registry.h"

namespace fsdp::trainer {

namespace {

GradScalerOptions scaler_options(const PrecisionConfig& precision) {
  return {.init_scale = precision.fp16_init_scale,
          .growth_interval = precision.fp16_growth_interval,
          .enabled = uses_fp16(precision)};
}

LrSchedule schedule_from(const Config& config, double learning_rate) {
  return {config.optimizer.lr_scheduler_type, learning_rate, config.optimizer.warmup_steps, config.steps.max_steps};
}

}  // namespace

TrainingRun::TrainingRun(const Config& config, const TrainedModel& model, ShardedModule& sharded, TrainBatches& batches)
    : config_(config),
      model_(model),
      sharded_(sharded),
      separate_(model.separate_parameters()),
      batches_(batches),
      schedule_(schedule_from(config, config.optimizer.learning_rate)),
      optimizer_(optimizer_kind(config.optimizer).make(sharded.parameters(), config.optimizer)),
      scaler_(scaler_options(config.precision)) {
  sharded.set_gradient_divide_factor(config.steps.gradient_divide_factor);
  sharded.set_reductions_see_norm(true);
  if (separate_) separate_schedule_.emplace(schedule_from(config, separate_->learning_rate()));
  if (config.sharding.offload_path) optimizer_->after_each_part([&sharded] { sharded.page_out(); });
}

StepResult TrainingRun::step() {
  StepResult result;
  result.learning_rate = schedule_.at(updates_);
  if (scaler_.enabled()) result.loss_scale = scaler_.scale();
  sharded_.zero_grad();
  if (separate_) separate_->zero_grad();
  result.loss = accumulate_gradients();
  const auto traced = sharded_.tracing().range("optimizer");
  result.grad_norm = unscaled_grad_norm();
  optimizer_->set_learning_rate(result.learning_rate);
  const double clipping =
      config_.steps.clip_grad_norm > 0 ? optim::clip_scale(config_.steps.clip_grad_norm, result.grad_norm) : 1.0;
  result.skipped = !scaler_.step(sharded_, [&] { update(clipping); });
  scaler_.update();
  if (!result.skipped) ++updates_;
  return result;
}

double TrainingRun::unscaled_grad_norm() {
  const double separate = separate_ ? separate_->grad_norm() : 0.0;
  return std::hypot(scaler_.unscaled_grad_norm(sharded_, !std::isfinite(separate)), separate / scaler_.scale());
}

void TrainingRun::update(double clipping) {
  const double gradient_scale = clipping / scaler_.scale();
  sharded_.with_offloaded_memory([&] { optimizer_->step(gradient_scale); });
  if (separate_) separate_->step(separate_schedule_->at(updates_), gradient_scale);
}

void TrainingRun::set_progress(const Progress& progress) {
  updates_ = progress.updates;
  std::optional<GradScalerState> state = scaler_.state_dict();
  if (!state || !progress.loss_scaling) return;
  state->scale = progress.loss_scaling->scale;
  state->growth_tracker = progress.loss_scaling->growth_tracker;
  scaler_.load_state_dict(state);
}

std::vector<SplitTensor> TrainingRun::split_tensors() const {
  return separate_ ? separate_->split_tensors() : std::vector<SplitTensor>{};
}

std::vector<MemoryCategory> TrainingRun::memory() const {
  const int64_t state = optimizer_->state_nbytes();
  std::vector<MemoryCategory> all{
      {config_.sharding.offload_path ? "optimizer state (files)" : "optimizer state", state, state, state}};
  if (!separate_) return all;
  for (MemoryCategory& category : separate_->memory()) all.push_back(std::move(category));
  return all;
}

double TrainingRun::accumulate_gradients() {
  const double share = 1.0 / static_cast<double>(config_.steps.gradient_accumulation_steps);
  double loss_sum = 0;
  for (int64_t pass = 0; pass < config_.steps.gradient_accumulation_steps; ++pass) {
    const auto [batch, weight] = batches_.next();
    const at::Tensor loss = forward(batch);
    const auto traced = sharded_.tracing().range("backward");
    sharded_.backward(scaler_.scale(loss * (share * weight)), backward_options(pass));
    loss_sum += loss.item<double>() * weight;
  }
  return loss_sum * share;
}

at::Tensor TrainingRun::forward(const Batch& batch) {
  const auto traced = sharded_.tracing().range("forward");
  return model_.loss(batch);
}

BackwardOptions TrainingRun::backward_options(int64_t pass) const {
  const bool is_last = pass + 1 == config_.steps.gradient_accumulation_steps;
  return {.requires_gradient_sync = is_last || config_.steps.sync_each_batch,
          .requires_all_reduce = is_last || config_.steps.all_reduce_each_batch};
}

}  // namespace fsdp::trainer
