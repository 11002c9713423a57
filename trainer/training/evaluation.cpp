#include "training/evaluation.h"

#include <ATen/core/grad_mode.h>

#include "data/batches.h"
#include "training/exchange.h"

namespace fsdp::trainer {

double evaluate(models::CausalLM& model, const Dataset& dataset, int64_t batch_size, Communicator& communicator,
                c10::Device device) {
  const at::NoGradGuard no_grad;
  const bool was_training = model.is_training();
  model.eval();
  const EvalBatches batches(dataset, batch_size, communicator.rank(), communicator.size(), device);
  double loss_sum = 0;
  for (int64_t round = 0; round < batches.rounds(); ++round) {
    const EvalBatches::Batch batch = batches.batch(round);
    const double loss = model.forward(batch.tokens, batch.tokens).loss.item<double>();
    // A sample of L tokens has L - 1 predicted ones. The filler's loss counts nothing, not even when it is
    // infinite.
    if (batch.counted_samples > 0) {
      loss_sum += loss * static_cast<double>(batch.counted_samples * (dataset.sequence_length() - 1));
    }
  }
  model.train(was_training);
  double total = 0;
  for (const auto& values : gather_values(communicator, {loss_sum}, {.name = "eval_loss"})) total += values[0];
  return total / static_cast<double>(dataset.size() * (dataset.sequence_length() - 1));
}

}  // namespace fsdp::trainer
