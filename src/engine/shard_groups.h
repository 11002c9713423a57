// The groups that one unit is sharded and replicated over.
#pragma once

#include <memory>

#include "flat/flat_parameter.h"
#include "fsdp/communicator.h"
#include "fsdp/mesh.h"
#include "fsdp/options.h"

namespace fsdp::engine {

struct ShardGroups {
  std::shared_ptr<Communicator> shard;      // null: each rank holds everything
  std::shared_ptr<Communicator> replicate;  // null: no replicas; never null together with `shard`
  // The group in which gradients are reduced over the shard group: `shard` or its twin. Null until the engine has
  // prepared.
  std::shared_ptr<Communicator> reduce = nullptr;

  flat::ShardPosition position() const {
    return shard ? flat::ShardPosition{shard->rank(), shard->size()} : flat::ShardPosition{};
  }
  // The number of ranks that contribute to a gradient.
  int64_t ranks() const { return (shard ? shard->size() : 1) * (replicate ? replicate->size() : 1); }
};

// Returns the groups of a unit. Throws if the strategy needs a group that the mesh lacks. `unit` names the unit in
// errors.
ShardGroups shard_groups(const ProcessMesh& mesh, ShardingStrategy strategy, const std::string& unit);

}  // namespace fsdp::engine
