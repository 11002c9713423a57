// Helpers for tests of units that are cut from the order in which parameters are used.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "fsdp/fully_shard.h"

namespace fsdp::testing {

// Returns options with automatic units of about `target_bytes`.
inline Options automatic(const std::shared_ptr<Communicator>& communicator, int64_t target_bytes = 300) {
  Options options;
  options.communicator = communicator;
  options.auto_units.emplace().target_bytes = target_bytes;
  return options;
}

// Returns the names of the units, outer ones first.
inline std::vector<std::string> names_of(const ShardedModule& sharded) {
  std::vector<std::string> names;
  for (const engine::Unit* unit : sharded.engine().tree().all()) {
    names.push_back(unit->name() + (unit->is_root() ? " (root)" : ""));
  }
  return names;
}

}  // namespace fsdp::testing
