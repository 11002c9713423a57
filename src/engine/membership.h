// Whether parameters of modules are still those that the engine shards (rule R6).
#pragma once

#include "flat/flat_parameter.h"

namespace fsdp::engine {

class Unit;

// Throws if one of the unit's parameters, or this one of them, has left the engine.
void check_membership(const Unit& unit);
void check_membership(const Unit& unit, const flat::ShardedParameter& parameter);

}  // namespace fsdp::engine
