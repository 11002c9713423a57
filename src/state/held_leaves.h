// What lies in the leaves that an optimizer of a sharded model was built on.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "fsdp/state_dict.h"
#include "state/held_part.h"

namespace fsdp {

struct HeldLeaf {
  at::Tensor leaf;
  std::vector<HeldPart> parts;
};

// Throws when a leaf of an optimizer is none of the model's.
void check_leaf(bool is_of_model, const at::Tensor& leaf);

// By parameter group. An error when the optimizer has a leaf that is none of the model's.
std::vector<std::vector<HeldLeaf>> held_leaves(const ShardedModule& model, const OptimizerState& optimizer);

// With the FQNs of the parameters that lie in the leaves.
std::vector<ParameterGroup> parameter_groups(const ShardedModule& model, const OptimizerState& optimizer);

}  // namespace fsdp
