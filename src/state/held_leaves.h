// The contents of the leaves that an optimizer of a sharded model was built on.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "fsdp/state_dict.h"
#include "state/held_part.h"

namespace fsdp::state {

struct HeldLeaf {
  at::Tensor leaf;
  std::vector<HeldPart> parts;
};

// Throws if an optimizer's leaf does not belong to the model.
void check_leaf(bool is_of_model, const at::Tensor& leaf);

// The optimizer's leaves, by parameter group. A leaf that does not belong to the model is an error.
std::vector<std::vector<HeldLeaf>> held_leaves(std::vector<HeldPart> of_model, const OptimizerState& optimizer);

// The optimizer's parameter groups, with the FQNs of the parameters that their leaves contain.
std::vector<ParameterGroup> parameter_groups(std::vector<HeldPart> of_model, const OptimizerState& optimizer);

}  // namespace fsdp::state
