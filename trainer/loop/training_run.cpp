#include "loop/training_run.h"

#include <cmath>
#include <utility>

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

std::vector<at::Tensor> parameters_of(const StepPasses& passes) {
  std::vector<at::Tensor> parameters;
  for (ShardedModule* sharded : passes.sharded()) {
    for (at::Tensor& parameter : sharded->parameters()) parameters.push_back(std::move(parameter));
  }
  return parameters;
}

}  // namespace

TrainingRun::TrainingRun(const Config& config, StepPasses& passes, SeparateParameters* separate, TrainBatches& batches)
    : config_(config),
      passes_(passes),
      separate_(separate),
      batches_(batches),
      schedule_(schedule_from(config, config.optimizer.learning_rate)),
      optimizer_(optimizer_kind(config.optimizer).make(parameters_of(passes_), config.optimizer)),
      scaler_(scaler_options(config.precision)) {
  for (ShardedModule* sharded : passes_.sharded()) {
    sharded->set_gradient_divide_factor(config.steps.gradient_divide_factor);
  }
  if (separate_) separate_schedule_.emplace(schedule_from(config, separate_->learning_rate()));
  if (!config.sharding.offload_path) return;
  optimizer_->after_each_part([this] {
    for (ShardedModule* sharded : passes_.sharded()) sharded->page_out();
  });
}

StepResult TrainingRun::step() {
  StepResult result;
  result.learning_rate = schedule_.at(updates_);
  if (scaler_.enabled()) result.loss_scale = scaler_.scale();
  for (ShardedModule* sharded : passes_.sharded()) sharded->zero_grad();
  if (separate_) separate_->zero_grad();
  result.loss = passes_.accumulate_gradients(batches_, scaler_);
  ShardedModule& first = *passes_.sharded().front();
  const auto traced = first.tracing().range("optimizer");
  const StepPasses::GradientNorm gradients = grad_norm();
  result.grad_norm = gradients.norm;
  optimizer_->set_learning_rate(result.learning_rate);
  const double clipping =
      config_.steps.clip_grad_norm > 0 ? optim::clip_scale(config_.steps.clip_grad_norm, result.grad_norm) : 1.0;
  result.skipped = !scaler_.step(first, [&] { update(clipping / gradients.scale); });
  scaler_.update();
  if (!result.skipped) ++updates_;
  return result;
}

StepPasses::GradientNorm TrainingRun::grad_norm() {
  const double separate = separate_ ? separate_->grad_norm() : 0.0;
  StepPasses::GradientNorm gradients = passes_.grad_norm(scaler_, !std::isfinite(separate));
  gradients.norm = std::hypot(gradients.norm, separate / scaler_.scale());
  return gradients;
}

void TrainingRun::update(double gradient_scale) {
  // The optimizer's state lies in the files of the first part.
  passes_.sharded().front()->with_offloaded_memory([&] { optimizer_->step(gradient_scale); });
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

}  // namespace fsdp::trainer
