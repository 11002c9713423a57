// Updates of whole parameters by their owners. See ShardedModule::update_whole_parameters for the contract.
#pragma once

#include <functional>

#include "engine/engine.h"
#include "fsdp/fully_shard.h"

namespace fsdp::engine {

void update_whole_parameters(Engine& engine, const std::function<void(const WholeParameter&)>& update);

}  // namespace fsdp::engine
