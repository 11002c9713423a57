// Meshes: how ranks are arranged for hybrid sharding (FSDP paper, section 3.2.2).
//
// With a sharding factor F, W ranks form W / F shard groups of F ranks each. A shard group holds one copy of the model;
// the ranks that hold the same part of it in all shard groups form a replicate group. Gradients are reduce-scattered in
// the shard group, then all-reduced in the replicate group. With F the number of ranks on a host, gathers stay inside
// the host and only 1 / F of the gradients goes between hosts.
#pragma once

#include <memory>
#include <string>

#include "fsdp/communicator.h"

namespace fsdp {

// Groups of ranks. A 2-D mesh has both of `shard` and `replicate`; `world` may then be missing. Members that are set
// are used by one thread at a time, together.
struct ProcessMesh {
  std::shared_ptr<Communicator> world;      // all ranks; what units are sharded over that are not hybrid
  std::shared_ptr<Communicator> shard;      // the ranks that hold one copy of the model together
  std::shared_ptr<Communicator> replicate;  // the ranks that hold the same part as this one

  bool is_2d() const { return shard && replicate; }
  // Of this process among all: in `world`, else counted through the shard groups.
  int rank() const { return world ? world->rank() : replicate->rank() * shard->size() + shard->rank(); }
  int size() const { return world ? world->size() : replicate->size() * shard->size(); }
};

// Ranks [k F, (k + 1) F) of `world` become shard group k. Collective. Throws when F does not divide the number of
// ranks.
ProcessMesh make_mesh(const std::shared_ptr<Communicator>& world, int sharding_factor);

// The ranks of one host become one shard group. `host` names this rank's; empty: the machine's own name. Collective.
// Throws on all ranks when hosts have different numbers of ranks.
ProcessMesh make_mesh_of_hosts(const std::shared_ptr<Communicator>& world, const std::string& host = {});

}  // namespace fsdp
