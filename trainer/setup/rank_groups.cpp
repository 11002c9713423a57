#include "setup/rank_groups.h"

#include "config/parallel_degrees.h"

namespace fsdp::trainer {

RankGroups make_rank_groups(const Config& config, const std::shared_ptr<Communicator>& world) {
  const ParallelDegrees degrees = parallel_degrees(config, world->size());
  if (!degrees.divides_model()) return {world, world};
  // Only the groups of hybrid strategies are told apart in the mesh: with no_shard, data-parallel ranks are one group.
  const int64_t replicas = is_hybrid(config.sharding.strategy) ? degrees.replicas() : 1;
  DeviceMesh mesh = DeviceMesh::make(world, {{"pp", static_cast<int>(degrees.pipeline)},
                                             {"dp_replicate", static_cast<int>(replicas)},
                                             {"dp_shard", static_cast<int>(degrees.data / replicas)},
                                             {"tp", static_cast<int>(degrees.tensor)}});
  std::shared_ptr<Communicator> data = mesh.data_parallel().world;
  return {world, std::move(data), std::move(mesh)};
}

}  // namespace fsdp::trainer
