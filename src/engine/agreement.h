// The facts that all ranks must agree on before they exchange parameters: world size, options, units, parameters.
#pragma once

namespace fsdp::engine {

class UnitTree;
struct UnitContext;

// Compares the ranks' facts. If they differ, all ranks throw an error that names the ranks and the first line in which
// they differ. Collective.
void compare_sharding(const UnitContext& context, const UnitTree& tree);

}  // namespace fsdp::engine
