#include "training/training_run.h"

#include <ATen/ops/mul.h>

#include "optim/clip_scale.h"

namespace fsdp::trainer {

namespace {

FusedAdamWOptions optimizer_options(const Config& config) {
  return {.learning_rate = config.learning_rate,
          .beta1 = config.adam_beta1,
          .beta2 = config.adam_beta2,
          .epsilon = config.adam_epsilon,
          .weight_decay = config.weight_decay};
}

}  // namespace

TrainingRun::TrainingRun(const Config& config, models::CausalLM& model, ShardedModule& sharded, TrainBatches& batches)
    : config_(config),
      model_(model),
      sharded_(sharded),
      batches_(batches),
      schedule_(config.lr_scheduler_type, config.learning_rate, config.warmup_steps, config.max_steps),
      optimizer_(sharded.parameters(), optimizer_options(config)) {}

StepResult TrainingRun::step() {
  StepResult result;
  result.learning_rate = schedule_.at(steps_done_);
  sharded_.zero_grad();
  result.loss = accumulate_gradients();
  result.grad_norm = sharded_.grad_norm().item<double>();
  optimizer_.set_learning_rate(result.learning_rate);
  optimizer_.step(config_.clip_grad_norm > 0 ? clip_scale(config_.clip_grad_norm, result.grad_norm) : 1.0);
  ++steps_done_;
  return result;
}

double TrainingRun::accumulate_gradients() {
  const double share = 1.0 / static_cast<double>(config_.gradient_accumulation_steps);
  double loss_sum = 0;
  for (int64_t pass = 0; pass < config_.gradient_accumulation_steps; ++pass) {
    const at::Tensor tokens = batches_.next();
    const at::Tensor loss = model_.forward(tokens, tokens).loss;
    (loss * share).backward();
    loss_sum += loss.item<double>();
  }
  return loss_sum * share;
}

}  // namespace fsdp::trainer
