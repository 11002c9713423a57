// The topology of a group of ranks, where each node has as many consecutive ranks.
#pragma once

#include <vector>

#include "planner/time/link_speed.h"

namespace fsdp::planner {

// `ranks`: ascending numbers in the whole run. All ranks of a node are taken to be in groups like this one, which use
// its NICs at the same time.
Topology group_topology(const std::vector<int>& ranks, int ranks_per_node);

}  // namespace fsdp::planner
