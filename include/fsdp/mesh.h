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

// Groups of ranks. A 2-D mesh has both `shard` and `replicate`; `world` may then be missing. All groups of a mesh are
// used by one thread at a time.
struct ProcessMesh {
  std::shared_ptr<Communicator> world;      // all ranks; units that are not hybrid are sharded over them
  std::shared_ptr<Communicator> shard;      // the ranks that together hold one copy of the model
  std::shared_ptr<Communicator> replicate;  // the ranks that hold the same part as this one
  std::string coordinates = {};             // for texts: where this rank is in a DeviceMesh, "pp 1, dp_shard 0", or ""
  // The ranks that hold other parts of the same parameters. Set by fully_shard from Options::tensor_parallel; else
  // null.
  std::shared_ptr<Communicator> parts = {};

  bool is_2d() const { return shard && replicate; }
  // The rank of this process among all ranks: its rank in `world`, or its number counted through the shard groups.
  int rank() const { return world ? world->rank() : replicate->rank() * shard->size() + shard->rank(); }
  int size() const { return world ? world->size() : replicate->size() * shard->size(); }
  // Whether it is the first of all ranks that hold the model, those of other parts included.
  bool is_first() const { return rank() == 0 && (!parts || parts->rank() == 0); }
  // Its number among the ranks of which those of the mesh may be a part: the data-parallel ranks of a pipeline's stage.
  int world_rank() const { return world ? world->world_rank(world->rank()) : rank(); }
  // "rank 5 (pp 1, dp_shard 0)": this process, for messages.
  std::string where() const;
};

// Makes ranks [k F, (k + 1) F) of `world` shard group k. Collective. Throws if F does not divide the number of ranks.
ProcessMesh make_mesh(const std::shared_ptr<Communicator>& world, int sharding_factor);

// Makes the ranks of each host one shard group. `host` is the name of this rank's host; empty: the machine's own name.
// Collective. Throws on all ranks if hosts have different numbers of ranks.
ProcessMesh make_mesh_of_hosts(const std::shared_ptr<Communicator>& world, const std::string& host = {});

}  // namespace fsdp
