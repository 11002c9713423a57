// How a run splits the weights of its model over ranks.
#pragma once

#include <memory>
#include <vector>

#include "config/config.h"
#include "fsdp/tensor_parallel.h"
#include "tasks/trained_model.h"

namespace fsdp::trainer {

// Lets the model, which must be a causal language model, compute its loss over classes that are split over `group`.
void split_head(TrainedModel& model, const std::shared_ptr<Communicator>& group);

// Returns the plan of the model. Throws a ConfigError if tensor_parallel_degree does not fit the model.
std::vector<TensorParallelRule> tensor_parallel_plan(const Config& config, const TrainedModel& model);

}  // namespace fsdp::trainer
