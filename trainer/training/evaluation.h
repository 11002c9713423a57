// The loss on data that is not trained on.
#pragma once

#include "data/dataset.h"
#include "fsdp/communicator.h"
#include "training/trained_model.h"

namespace fsdp::trainer {

// The mean loss over the predictions of all samples, each taken by one rank once: the same on all ranks. The model
// (sharded over the ranks of `communicator`) runs in evaluation mode, without gradients, and with rank 0's buffers (its
// running statistics, say), which it keeps; its mode is restored. `device`: where the model computes. Collective.
double evaluate(const TrainedModel& model, const Dataset& dataset, int64_t batch_size, Communicator& communicator,
                c10::Device device = c10::kCPU);

}  // namespace fsdp::trainer
