// The loss on data that is not trained on.
#pragma once

#include "data/dataset.h"
#include "fsdp/communicator.h"
#include "models/causal_lm.h"

namespace fsdp::trainer {

// The mean loss over the predicted tokens of all samples, each taken by one rank once: the same on all ranks.
// The model (sharded over the ranks of `communicator`) runs in evaluation mode and without gradients; its
// mode is restored. `device`: where the model computes. Collective.
double evaluate(models::CausalLM& model, const Dataset& dataset, int64_t batch_size, Communicator& communicator,
                c10::Device device = c10::kCPU);

}  // namespace fsdp::trainer
