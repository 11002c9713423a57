#include "loop/evaluation.h"

#include <ATen/core/grad_mode.h>

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

}  // namespace

double evaluate(const TrainedModel& model, const Dataset& dataset, int64_t batch_size, Communicator& communicator,
                c10::Device device) {
  const at::NoGradGuard no_grad;
  const bool was_training = model.module().is_training();
  take_buffers_of_rank_0(model.module(), communicator);
  model.module().eval();
  const EvalBatches batches(dataset, batch_size, communicator.rank(), communicator.size(), device);
  double loss_sum = 0, predictions = 0;
  for (int64_t round = 0; round < batches.rounds(); ++round) {
    const EvalBatches::CountedBatch counted = batches.batch(round);
    const double loss = model.loss(counted.batch).item<double>();
    // The loss of the filler is ignored, even if it is infinite.
    if (counted.predictions > 0) loss_sum += loss * static_cast<double>(counted.predictions);
    predictions += static_cast<double>(counted.predictions);
  }
  model.module().train(was_training);
  double total = 0, total_predictions = 0;
  for (const auto& values : gather_values(communicator, {loss_sum, predictions}, {.name = "eval_loss"})) {
    total += values[0];
    total_predictions += values[1];
  }
  return total / total_predictions;
}

}  // namespace fsdp::trainer
