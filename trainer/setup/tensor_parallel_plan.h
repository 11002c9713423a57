// How a run splits the weights of its model over ranks.
#pragma once

#include <memory>
#include <vector>

#include "config/config.h"
#include "fsdp/tensor_parallel.h"
#include "tasks/trained_model.h"

namespace fsdp::trainer {

// Returns the plan of the model. Throws a ConfigError if tensor_parallel_degree does not fit the model.
std::vector<TensorParallelRule> tensor_parallel_plan(const Config& config, const TrainedModel& model);

// Tells the model, which must be a causal language model, what it has a part of, and returns how `group` splits it.
TensorParallelOptions tensor_parallel_options(const Config& config, TrainedModel& model,
                                              const std::shared_ptr<Communicator>& group);

}  // namespace fsdp::trainer
