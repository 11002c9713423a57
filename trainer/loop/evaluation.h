// Computes the loss on evaluation data.
#pragma once

#include "data/dataset.h"
#include "fsdp/communicator.h"
#include "loop/step_passes.h"
#include "tasks/trained_model.h"

namespace fsdp::trainer {

// The ranks that evaluate.
struct EvaluatingRanks {
  Communicator& all;
  Communicator& data;  // those that take different samples: all, or those of this rank's stages
};

// Returns the mean loss over the predictions of all samples, each evaluated once. The result is the same on all ranks.
// `modules`: those that `passes` run, in evaluation mode and without gradients, with the buffers of rank 0 of `data`
// (such as running statistics), which they keep; their earlier mode is restored. `device`: the device on which they
// compute. Collective.
double evaluate(StepPasses& passes, const std::vector<torch::nn::Module*>& modules, const Dataset& dataset,
                int64_t batch_size, const EvaluatingRanks& ranks, c10::Device device = c10::kCPU);

}  // namespace fsdp::trainer
