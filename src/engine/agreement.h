// The facts that all ranks must agree on before they exchange parameters: world size, options, units, parameters.
#pragma once

#include <string>

namespace fsdp::engine {

class Engine;

// Returns these facts as text, one line for each.
std::string describe_sharding(const Engine& engine);

// Compares the ranks' facts. If they differ, all ranks throw an error that names the ranks and the first line in which
// they differ. Collective.
void compare_sharding(Engine& engine);

}  // namespace fsdp::engine
