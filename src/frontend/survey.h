// Finds the parameters below the module of a fully_shard call: to be sharded, already sharded, ignored.
#pragma once

#include <torch/nn/module.h>

#include <string>
#include <unordered_set>
#include <vector>

#include "engine/engine.h"
#include "frontend/module_parameters.h"
#include "fsdp/options.h"

namespace fsdp::frontend {

struct Survey {
  ModuleTree tree;
  std::vector<FoundParameter> unassigned;  // to be sharded by this call
  std::vector<engine::Engine*> inner;      // engines of inner modules annotated before, in module order
  std::vector<at::Tensor> ignored;         // parameters that are not sharded, also those of inner calls
  std::vector<std::string> ignored_paths;  // of modules
};

// Throws if an ignored parameter is sharded already.
Survey survey(const torch::nn::Module& root, const Options& options);

// Return the modules that inner fully_shard calls have annotated, as identities and as paths.
std::unordered_set<const void*> annotated_modules(const Survey& surveyed);
std::vector<std::string> annotated_paths(const Survey& surveyed);

// The following checks throw errors that list the FQNs concerned.
// Checks that the module has no unit of its own and that fully_shard was not called on it before, even if no parameters
// were left for its unit.
void check_not_annotated(const Survey& surveyed, const torch::nn::Module& module);
// Checks that each parameter of an inner unit is held only by modules at or below the modules of that unit: otherwise
// the parameter would be in two units.
void check_inner_units(const Survey& surveyed);
// Checks that the parameters to be sharded are on one device, that each of them can be sharded, and that none shares
// memory with another one or with a buffer below `root`.
void check_unassigned(const Survey& surveyed, const torch::nn::Module& root);

// Renames the units of an inner call, which `engine` has absorbed, by their paths in this tree.
void rename_inner_units(engine::Engine& engine, const ModuleTree& tree);

}  // namespace fsdp::frontend
