// The state of an optimizer with whole tensors: gathered, and as a source to load from.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "fsdp/mesh.h"
#include "fsdp/state_dict.h"
#include "state/held_part.h"
#include "state/saved_optimizer.h"

namespace fsdp::state {

// Describes the state of the parameters of a model, of which `parts` are this rank's: {FQN: {"scalars": {…}, "tensors":
// {NAME: dtype}}}. The same on all ranks of the mesh. Collective.
nlohmann::json described_state(const std::vector<HeldPart>& parts, const OptimizerState& optimizer,
                               const ProcessMesh& mesh);

using VisitState = std::function<void(const std::string& fqn, const std::string& name, const at::Tensor& full)>;
// Gathers one tensor of one FlatParameter at a time. Collective.
void visit_state(ShardedModule& model, const OptimizerState& optimizer, const nlohmann::json& described,
                 const VisitState& visit);

SavedOptimizer saved_from(const FullOptimizerState& state);
// Describes the tensors, and has the rest.
nlohmann::json text_of(const SavedOptimizer& saved);

}  // namespace fsdp::state
