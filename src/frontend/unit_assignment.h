// Which parameters go into which unit (the unit rule), as plain bookkeeping before anything is sharded.
#pragma once

#include <torch/nn/module.h>

#include <unordered_set>
#include <vector>

#include "engine/unit.h"
#include "frontend/module_parameters.h"
#include "fsdp/wrap_policy.h"

namespace fsdp {

// A unit to be: what it is made for, and what it takes.
struct UnitPlan {
  UnitOrigin origin;
  std::vector<FoundParameter> parameters;
  bool is_root = false;
};

// Units for `root`, children before parents, the root's own last (absent when nothing is left for it). `parameters`
// are those below the root that no unit has taken; modules in `annotated` (identities) are not asked again.
std::vector<UnitPlan> assign_units(const torch::nn::Module& root, const WrapPolicy& policy,
                                   std::vector<FoundParameter> parameters,
                                   const std::unordered_set<const void*>& annotated);

// A unit for each parameter, until they are cut (Options::auto_units).
std::vector<UnitPlan> assign_singly(const torch::nn::Module& root, const std::vector<FoundParameter>& parameters);

}  // namespace fsdp
