// Keeps engines alive as long as their parameters are in use, so that the handle that fully_shard returns need not be
// kept.
#pragma once

#include <memory>

#include "engine/engine.h"

namespace fsdp {

// Adds an engine; drops those whose parameters nobody else holds any more. Threads: safe.
void register_engine(std::shared_ptr<Engine> engine);
// For an engine that another one has absorbed.
void unregister_engine(const Engine& engine);

}  // namespace fsdp
