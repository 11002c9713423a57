#include "fsdp/mesh.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <vector>

#include "comm/meeting/network.h"

namespace fsdp {
namespace {

using Groups = std::vector<std::vector<int>>;

const CollectiveId kMesh{"mesh", 0, Pass::kSetup};

// Makes the mesh of this rank: its shard group, and the ranks at its position in all shard groups.
ProcessMesh connect(const std::shared_ptr<Communicator>& world, const Groups& shard_groups) {
  for (const std::vector<int>& group : shard_groups) {
    const auto at = std::find(group.begin(), group.end(), world->rank());
    if (at == group.end()) continue;
    std::vector<int> replicas;
    for (const std::vector<int>& other : shard_groups) replicas.push_back(other.at(at - group.begin()));
    std::sort(replicas.begin(), replicas.end());
    return {world, world->subgroup(group, {"mesh: shard group", 0, Pass::kSetup}),
            world->subgroup(replicas, {"mesh: replicate group", 0, Pass::kSetup})};
  }
  TORCH_CHECK(false, "fsdp: rank ", world->rank(), " is in no shard group");
}

// Returns the ranks of each host, ordered by the hosts' first ranks.
Groups group_by_host(const std::vector<std::string>& hosts) {
  std::vector<std::string> names;
  Groups groups;
  for (size_t rank = 0; rank < hosts.size(); ++rank) {
    size_t host = std::find(names.begin(), names.end(), hosts[rank]) - names.begin();
    if (host == names.size()) {
      names.push_back(hosts[rank]);
      groups.emplace_back();
    }
    groups[host].push_back(static_cast<int>(rank));
  }
  for (size_t host = 1; host < names.size(); ++host) {
    TORCH_CHECK(groups[host].size() == groups[0].size(), "fsdp: a mesh with one shard group for each host needs the ",
                "same number of ranks on all hosts, but ", names[0], " has ", groups[0].size(), " and ", names[host],
                " has ", groups[host].size(), "; use make_mesh with a sharding factor");
  }
  return groups;
}

}  // namespace

std::string ProcessMesh::where() const {
  return c10::str("rank ", world_rank(), coordinates.empty() ? "" : " (" + coordinates + ")");
}

ProcessMesh make_mesh(const std::shared_ptr<Communicator>& world, int sharding_factor) {
  TORCH_CHECK(world, "fsdp: make_mesh: the communicator is null");
  TORCH_CHECK(sharding_factor >= 1 && world->size() % sharding_factor == 0, "fsdp: make_mesh: sharding factor ",
              sharding_factor, " does not divide the number of ranks, ", world->size());
  Groups groups;
  for (int rank = 0; rank < world->size(); ++rank) {
    if (rank % sharding_factor == 0) groups.emplace_back();
    groups.back().push_back(rank);
  }
  return connect(world, groups);
}

ProcessMesh make_mesh_of_hosts(const std::shared_ptr<Communicator>& world, const std::string& host) {
  TORCH_CHECK(world, "fsdp: make_mesh_of_hosts: the communicator is null");
  return connect(world, group_by_host(world->all_gather_bytes(host.empty() ? comm::host_name() : host, kMesh)));
}

}  // namespace fsdp
