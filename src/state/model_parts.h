// The parts of a model that one rank holds.
#pragma once

#include <torch/nn/module.h>

#include <map>
#include <string>
#include <vector>

#include "fsdp/fully_shard.h"
#include "state/held_part.h"
#include "state/together.h"
#include "state/unsharded_tensors.h"

namespace fsdp::state {

// The whole model, or a stage of a pipeline.
struct ModelPart {
  ShardedModule& model;
  torch::nn::Module& module;  // the module of `model`: for buffers and parameters that are not sharded
  int stage = 0;              // in the order of the model
};

// One, or the stages that a rank holds. Their names are those of the whole model.
using ModelParts = std::vector<ModelPart>;

// Those of all parts, in their order.
std::vector<HeldPart> held_parts(const ModelParts& parts);
NamedTensors unsharded_tensors(const ModelParts& parts);

// Names the stages, such as "0, 3". Ranks whose parts have different texts hold different parts of the model.
std::string stages_text(const ModelParts& parts);

// Whether this rank is the first of those that shard its parts.
bool is_first_of_parts(const ModelParts& parts);

// By FQN, the stage that saves a parameter of which two stages have a copy.
using TiedSavers = std::map<std::string, int>;
// Returns the first stage that has each of these parameters. Collective; does not communicate if there are none.
TiedSavers savers_of_tied(const ModelParts& parts, const std::vector<std::string>& tied, const Exchange& exchange,
                          const std::string& name);

}  // namespace fsdp::state
