#include "engine/shard_groups.h"

#include <c10/util/Exception.h>

namespace fsdp::engine {
namespace {

// Returns null for a group of one rank, which shards nothing.
std::shared_ptr<Communicator> unless_alone(const std::shared_ptr<Communicator>& group) {
  return group && group->size() > 1 ? group : nullptr;
}

}  // namespace

ShardGroups shard_groups(const ProcessMesh& mesh, ShardingStrategy strategy, const std::string& unit) {
  if (is_hybrid(strategy)) {
    TORCH_CHECK(mesh.is_2d(), "fsdp: unit '", unit, "': ", to_string(strategy),
                " needs a shard group and a replicate group: set Options::mesh (make_mesh, make_mesh_of_hosts)");
    ShardGroups groups{unless_alone(mesh.shard), unless_alone(mesh.replicate)};
    if (!groups.shard && !groups.replicate) groups.replicate = mesh.replicate;
    return groups;
  }
  TORCH_CHECK(mesh.world, "fsdp: unit '", unit, "': ", to_string(strategy),
              " needs a group of all ranks: set Options::communicator");
  if (strategy == ShardingStrategy::kNoShard || mesh.world->size() == 1) return {nullptr, mesh.world};
  return {mesh.world, nullptr};
}

}  // namespace fsdp::engine
