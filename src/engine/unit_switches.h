// The user's switches for single units: ShardedModule's functions that take a module.
#pragma once

#include <optional>

namespace fsdp::engine {

// Changes only while no backward runs.
struct UnitSwitches {
  // BackwardOptions and the divisor of gradients. Unset: those of the tree.
  std::optional<bool> requires_gradient_sync;
  std::optional<bool> requires_all_reduce;
  std::optional<double> divide_factor;
  // Whether backward gathers the unit ahead of its use.
  bool unshard_in_backward = true;
};

}  // namespace fsdp::engine
