// How a run splits the weights of its model over ranks.
#pragma once

#include <memory>

#include "config/config.h"
#include "fsdp/tensor_parallel.h"
#include "tasks/trained_model.h"

namespace fsdp::trainer {

// Throws a ConfigError if tensor_parallel_degree does not fit the model.
void check_can_be_split(const Config& config, const TrainedModel& model);

// Lets `group` split the model, which must have been checked, and returns what fully_shard needs for it.
TensorParallelOptions split_over(const std::shared_ptr<Communicator>& group, const Config& config, TrainedModel& model);

}  // namespace fsdp::trainer
