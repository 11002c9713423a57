// Assigns parameters to units (the unit rule), as plain bookkeeping before anything is sharded.
#pragma once

#include <torch/nn/module.h>

#include <unordered_set>
#include <vector>

#include "engine/unit.h"
#include "frontend/module_parameters.h"
#include "fsdp/wrap_policy.h"

namespace fsdp::frontend {

// A unit to be made: the modules for which it is made, and its parameters.
struct UnitSpec {
  engine::UnitOrigin origin;
  std::vector<FoundParameter> parameters;
  bool is_root = false;
};

// Returns the units for `root`, children before parents, the root's own last (absent if no parameters are left for it).
// `parameters` are the parameters below the root that belong to no unit yet. The policy is not asked about modules in
// `annotated` (identities).
std::vector<UnitSpec> assign_units(const torch::nn::Module& root, const WrapPolicy& policy,
                                   std::vector<FoundParameter> parameters,
                                   const std::unordered_set<const void*>& annotated);

// Returns one unit for each parameter, for use until units are cut (Options::auto_units).
std::vector<UnitSpec> assign_singly(const torch::nn::Module& root, const std::vector<FoundParameter>& parameters);

}  // namespace fsdp::frontend
