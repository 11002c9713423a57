// The user's switches for single units: ShardedModule's functions that take a module.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "fsdp/options.h"
#include "fsdp/pass.h"

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
  // The units to gather when this unit is used, instead of the expected ones. Empty: the expected ones.
  std::vector<Unit*> forward_prefetch;
  std::vector<Unit*> backward_prefetch;
  const std::vector<Unit*>& prefetched(Pass pass) const {
    return pass == Pass::kBackward ? backward_prefetch : forward_prefetch;
  }
  void prefetch(Pass pass, std::vector<Unit*> units) {
    (pass == Pass::kBackward ? backward_prefetch : forward_prefetch) = std::move(units);
  }
};

// ShardedModule's functions of these names for these units of an engine. Ranks compare the switches, and make groups
// for them, when a unit is used next.
void set_reshard_after_forward(Engine& engine, const std::vector<Unit*>& units, const ReshardAfterForward& reshard);
void set_reshard_after_backward(Engine& engine, const std::vector<Unit*>& units, bool on);
void set_unshard_in_backward(Engine& engine, const std::vector<Unit*>& units, bool on);

}  // namespace fsdp::engine
