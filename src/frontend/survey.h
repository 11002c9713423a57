// What a fully_shard call finds below its module: what is to be sharded, what is sharded already, what is ignored.
#pragma once

#include <torch/nn/module.h>

#include <string>
#include <unordered_set>
#include <vector>

#include "engine/engine.h"
#include "frontend/module_parameters.h"
#include "fsdp/options.h"

namespace fsdp {

struct Survey {
  ModuleTree tree;
  std::vector<FoundParameter> unassigned;  // to be sharded by this call
  std::vector<Engine*> inner;              // of inner modules that were annotated before, in module order
  std::vector<at::Tensor> ignored;         // parameters that are not sharded, of inner calls too
  std::vector<std::string> ignored_paths;  // of modules
};

// Throws when an ignored parameter is sharded already.
Survey survey(const torch::nn::Module& root, const Options& options);

// Modules that inner fully_shard calls have annotated: identities, and paths.
std::unordered_set<const void*> annotated_modules(const Survey& surveyed);
std::vector<std::string> annotated_paths(const Survey& surveyed);

// The checks throw, listing the FQNs concerned.
// The module has no unit of its own, and fully_shard was not called on it, also where nothing was left for its unit.
void check_not_annotated(const Survey& surveyed, const torch::nn::Module& module);
// Inner units must lie below this call's modules whole, and a parameter that one of them took must not be held outside
// of it as well: it would be in two units' reach.
void check_inner_units(const Survey& surveyed);
// What is to be sharded is on one device, and each parameter can be sharded and shares no memory with another one, nor
// with a buffer below `root`.
void check_unassigned(const Survey& surveyed, const torch::nn::Module& root);

// Gives the units of an inner call, which `engine` has absorbed, their names in this tree.
void rename_inner_units(Engine& engine, const ModuleTree& tree);

}  // namespace fsdp
