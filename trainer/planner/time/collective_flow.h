// Collectives of collective_time.h as flows of a replay.
#pragma once

#include <vector>

#include "planner/time/collective_time.h"
#include "planner/time/replay.h"

namespace fsdp::planner {

// The two links of a node, as indices into Replay::links.
constexpr int kLinkInside = 0;
constexpr int kLinkToNodes = 1;

// Bytes per second of both.
std::vector<double> node_links(const LinkSpeed& links);

// The shares of the device are those of LinkSpeed. A ring across hosts also runs inside them: it takes as much
// arithmetic as there, and memory by its rate.
ReplayFlow collective_flow(const CollectiveTime& time, const LinkSpeed& links);

}  // namespace fsdp::planner
