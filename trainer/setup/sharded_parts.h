// The model of a rank, sharded: all of it, or the stages of a pipeline that the rank has.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "config/config.h"
#include "fsdp/fully_shard.h"
#include "setup/rank_groups.h"
#include "setup/training_inputs.h"
#include "state/model_parts.h"

namespace fsdp::trainer {

struct ShardedPart {
  TrainedModel& model;
  std::shared_ptr<ShardedModule> sharded;
  int stage = 0;  // in the order of the model
};

using ShardedParts = std::vector<ShardedPart>;  // in the order of the model

// Shards the models that `inputs` opened, which must outlive the result, over `groups.data`; of a pipeline, this rank's
// stages, after it has dropped the others' parts of the models. Fills them with the weights of `inputs` or, if it has
// none, with the initial values that the models recorded, unless `from_checkpoint`: values come from elsewhere then.
// Collective.
ShardedParts shard_parts(const Config& config, const TrainingInputs& inputs, RankGroups& groups, c10::Device device,
                         bool from_checkpoint);

// Returns the options for sharding a model, or a stage of one, over the groups of a run. With tensor parallelism, for
// which the model must have been checked, the ranks of a group split it from then on. Collective as sharding_options.
Options part_options(const Config& config, TrainedModel& model, RankGroups& groups, c10::Device device);

// Returns the FQNs of the parameters of a model, a shared one under its first name.
std::vector<std::string> parameter_names(const torch::nn::Module& module);

// Returns the FQNs of which two stages of the pipeline have a copy.
std::vector<std::string> tied_parameters(const TrainingInputs& inputs);

// For checkpoints.
state::ModelParts model_parts(const ShardedParts& parts);
std::vector<torch::nn::Module*> modules_of(const ShardedParts& parts);
std::vector<ShardedModule*> sharded_of(const ShardedParts& parts);

// Returns the engine's memory by category (Diagnostics::memory). That of several parts is added up, also their peaks,
// which they may reach at different moments.
std::vector<MemoryCategory> memory_of(const ShardedParts& parts);

}  // namespace fsdp::trainer
