// Keeps engines alive as long as their parameters are in use, so that the handle that fully_shard returns need not be
// kept.
#pragma once

#include <memory>

#include "engine/engine.h"

namespace fsdp {

// Adds an engine; drops those whose parameters nobody else holds any more. Threads: safe.
void register_engine(std::shared_ptr<Engine> engine);
// How many models have been sharded over a communicator before, plus one: ranks that shard several models in the same
// order number them alike. Threads: safe.
int64_t number_of_model(const std::shared_ptr<Communicator>& communicator);
// For an engine that another one has absorbed.
void unregister_engine(const Engine& engine);

}  // namespace fsdp
