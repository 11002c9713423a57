// Computes the loss on evaluation data.
#pragma once

#include "data/dataset.h"
#include "fsdp/communicator.h"
#include "tasks/trained_model.h"

namespace fsdp::trainer {

// Returns the mean loss over the predictions of all samples, each evaluated once, on one rank. The result is the same
// on all ranks. The model (sharded over the ranks of `communicator`) runs in evaluation mode, without gradients, with
// rank 0's buffers (such as running statistics), which it keeps; its earlier mode is restored. `device`: the device on
// which the model computes. Collective.
double evaluate(const TrainedModel& model, const Dataset& dataset, int64_t batch_size, Communicator& communicator,
                c10::Device device = c10::kCPU);

}  // namespace fsdp::trainer
