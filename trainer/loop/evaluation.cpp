#include "loop/evaluation.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

#include "data/batches.h"
#include "loop/exchange.h"

namespace fsdp::trainer {

namespace {

// Copies rank 0's buffers to all ranks. Running statistics, for example, come from each rank's own samples.
void take_buffers_of_rank_0(const torch::nn::Module& module, Communicator& communicator) {
  for (const auto& buffer : module.named_buffers()) {
    const at::Tensor flat = buffer.value().contiguous().view(-1);
    communicator.broadcast(flat, 0, {.name = buffer.key()})->wait();
    buffer.value().copy_(flat.view_as(buffer.value()));
  }
}

// This rank's part of a mean over predictions.
struct LossSum {
  double sum = 0, predictions = 0;

  // The loss of a filler is ignored, even if it is infinite.
  void add(double loss, int64_t count) {
    if (count == 0) return;
    sum += loss * static_cast<double>(count);
    predictions += static_cast<double>(count);
  }
};

LossSum sum_losses(StepPasses& passes, const EvalBatches& batches) {
  LossSum total;
  for (int64_t begin = 0; begin < batches.rounds(); begin += passes.most_batches()) {
    std::vector<Batch> some;
    std::vector<int64_t> predictions;
    for (int64_t round = begin; round < std::min(begin + passes.most_batches(), batches.rounds()); ++round) {
      EvalBatches::CountedBatch counted = batches.batch(round);
      some.push_back(std::move(counted.batch));
      predictions.push_back(counted.predictions);
    }
    const std::vector<double> losses = passes.losses(some);
    for (size_t i = 0; i < losses.size(); ++i) total.add(losses[i], predictions[i]);
  }
  return total;
}

}  // namespace

double evaluate(StepPasses& passes, const std::vector<torch::nn::Module*>& modules, const Dataset& dataset,
                int64_t batch_size, const EvaluatingRanks& ranks, c10::Device device) {
  const at::NoGradGuard no_grad;
  const bool was_training = modules.front()->is_training();
  for (torch::nn::Module* module : modules) {
    take_buffers_of_rank_0(*module, ranks.data);
    module->eval();
  }
  const LossSum own = sum_losses(passes, {dataset, batch_size, ranks.data.rank(), ranks.data.size(), device});
  for (torch::nn::Module* module : modules) module->train(was_training);
  double total = 0, total_predictions = 0;
  for (const auto& values : gather_values(ranks.all, {own.sum, own.predictions}, {.name = "eval_loss"})) {
    total += values[0];
    total_predictions += values[1];
  }
  return total / total_predictions;
}

}  // namespace fsdp::trainer
