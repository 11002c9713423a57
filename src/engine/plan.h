// The plan: everything that all ranks must agree on before they exchange parameters.
#pragma once

#include <string>

namespace fsdp {

class Engine;

// Returns the plan as text, one line for each fact: world size, options, units, parameters.
std::string plan_text(const Engine& engine);

// Compares the ranks' plans. If they differ, all ranks throw an error that names the ranks and the first line in which
// they differ. Collective.
void compare_plans(Engine& engine);

}  // namespace fsdp
