// Keeps engines alive as long as their parameters are in use, so that callers need not keep the handle that fully_shard
// returns.
#pragma once

#include <memory>

#include "engine/engine.h"

namespace fsdp::frontend {

// Adds an engine, and occasionally releases engines whose parameters are not referenced elsewhere any more.
// Thread-safe.
void register_engine(std::shared_ptr<engine::Engine> engine);
// Counts a new model of a communicator and returns its number, starting at 1: ranks that shard several models in the
// same order number them alike. Thread-safe.
int64_t number_of_model(const std::shared_ptr<Communicator>& communicator);
// Removes an engine that another one has absorbed.
void unregister_engine(const engine::Engine& engine);

}  // namespace fsdp::frontend
