// A named mesh: how ranks are arranged for several kinds of parallelism at once (FSDP paper, section 7.1).
//
// Ranks are numbered row by row: those that differ in the last dimension alone are neighbours. With {pp 2, dp_shard 2,
// tp 2}, ranks 0 and 1 hold parts of the same layers' parameters, ranks 0 and 2 shard them, and ranks 0 and 4 hold
// different layers. The dimensions have the names of torchtitan:
//
//   pp            pipeline: each coordinate holds other layers
//   dp_replicate  data parallel: each holds a copy (hybrid sharding)
//   dp_shard      data parallel: together they hold one copy (FSDP)
//   cp, ep        context and expert parallel: reserved, of size 1
//   tp            tensor parallel: each holds a part of each layer; best within a host
//
//   auto mesh = fsdp::DeviceMesh::make(world, {{"pp", 2}, {"dp_shard", -1}});
//   options.mesh = mesh.data_parallel();
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "fsdp/communicator.h"
#include "fsdp/mesh.h"

namespace fsdp {

struct MeshDimension {
  std::string name;
  int size = 1;  // -1, for at most one dimension: what the others leave of the ranks
};

// Threads: one at a time, as its groups.
class DeviceMesh {
 public:
  // Makes a mesh of all ranks of `world`, and the group of each dimension. The outermost dimension comes first; those
  // that are left out have size 1. Collective. Throws on all ranks if a name is unknown or stands twice, if the sizes'
  // product is not the number of ranks, or if ranks pass different dimensions.
  static DeviceMesh make(const std::shared_ptr<Communicator>& world, std::vector<MeshDimension> dimensions);

  // All of these throw for names that no dimension can have.
  int size(std::string_view name) const;
  // The coordinate of this rank.
  int rank(std::string_view name) const;
  // The ranks that differ from this one in that dimension alone. Their numbers in the group are their coordinates.
  std::shared_ptr<Communicator> group(std::string_view name) const;

  // The ranks that differ from this one in these dimensions alone, numbered row by row. The first call for a set of
  // dimensions makes the group; it is collective over all ranks of the mesh and blocks. Later calls return the same
  // one.
  std::shared_ptr<Communicator> flatten(const std::vector<std::string>& names);

  // The ranks over which fully_shard shards and replicates, for Options::mesh: `world` are those of dp_replicate and
  // dp_shard. With dp_replicate above 1 it is 2-D, as hybrid strategies need it. Collective at the first call.
  ProcessMesh data_parallel();

  const std::shared_ptr<Communicator>& world() const { return world_; }
  const std::vector<MeshDimension>& dimensions() const { return dimensions_; }

  // "rank 5 (pp 1, dp_shard 0, tp 1)": a rank of `world`, by default this one, for messages. Dimensions of size 1 are
  // left out.
  std::string where(int rank) const;
  std::string where() const { return where(world_->rank()); }

 private:
  DeviceMesh(std::shared_ptr<Communicator> world, std::vector<MeshDimension> dimensions);

  int coordinate(size_t dimension, int rank) const;
  std::string coordinates(int rank) const;
  std::vector<int> ranks_that_differ_in(const std::vector<bool>& dimensions) const;
  std::shared_ptr<Communicator> make_group(const std::vector<bool>& dimensions, const std::string& names) const;
  std::vector<bool> mask_of(const std::vector<std::string>& names) const;

  std::shared_ptr<Communicator> world_;
  std::vector<MeshDimension> dimensions_;
  std::map<std::vector<bool>, std::shared_ptr<Communicator>> groups_;  // by the dimensions in which their ranks differ
};

}  // namespace fsdp
