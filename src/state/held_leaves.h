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

// By parameter group. An error when the optimizer has a leaf that is none of the model's.
std::vector<std::vector<HeldLeaf>> held_leaves(const ShardedModule& model, const OptimizerState& optimizer);

// With the FQNs of the parameters that lie in the leaves.
std::vector<ParameterGroup> parameter_groups(const ShardedModule& model, const OptimizerState& optimizer);

}  // namespace fsdp
