// Work on whole parameters: scopes and visits that all ranks take part in. See ShardedModule for the contracts.
#pragma once

#include <functional>
#include <string>

#include "engine/engine.h"
#include "fsdp/fully_shard.h"

namespace fsdp::engine {

void summon_full_params(Engine& engine, const SummonOptions& options, const std::function<void()>& body);
void for_each_full_parameter(Engine& engine, const std::function<void(const std::string&, const at::Tensor&)>& visit,
                             const FullParameterOptions& options = {});

}  // namespace fsdp::engine
