// The user's switches for single units: ShardedModule's functions that take a module.
#pragma once

#include <optional>
#include <vector>

#include "fsdp/options.h"

namespace fsdp::engine {

class Engine;
class Unit;

// Changes only while no backward runs.
struct UnitSwitches {
  // BackwardOptions and the divisor of gradients. Unset: those of the tree.
  std::optional<bool> requires_gradient_sync;
  std::optional<bool> requires_all_reduce;
  std::optional<double> divide_factor;
  // Whether backward gathers the unit ahead of its use.
  bool unshard_in_backward = true;
};

// ShardedModule's functions of these names for these units of an engine. Ranks compare the switches, and make groups
// for them, when a unit is used next.
void set_reshard_after_forward(Engine& engine, const std::vector<Unit*>& units, const ReshardAfterForward& reshard);
void set_reshard_after_backward(Engine& engine, const std::vector<Unit*>& units, bool on);
void set_unshard_in_backward(Engine& engine, const std::vector<Unit*>& units, bool on);

}  // namespace fsdp::engine
