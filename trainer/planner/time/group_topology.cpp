#include "planner/time/group_topology.h"

#include <algorithm>

namespace fsdp::planner {

Topology group_topology(const std::vector<int>& ranks, int ranks_per_node) {
  int nodes = 0, node = -1, here = 0, most = 1;
  for (const int rank : ranks) {
    if (rank / ranks_per_node != node) {
      node = rank / ranks_per_node;
      here = 0;
      ++nodes;
    }
    most = std::max(most, ++here);
  }
  return {.ranks = static_cast<int>(ranks.size()),
          .nodes = std::max(1, nodes),
          .groups_per_node = std::max(1, ranks_per_node / most)};
}

}  // namespace fsdp::planner
