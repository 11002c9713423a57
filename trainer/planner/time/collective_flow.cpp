#include "planner/time/collective_flow.h"

namespace fsdp::planner {

std::vector<double> node_links(const LinkSpeed& links) { return {links.ring, links.node_bandwidth()}; }

ReplayFlow collective_flow(const CollectiveTime& time, const LinkSpeed& links) {
  ReplayFlow flow{.latency = time.latency, .transfer = time.transfer};
  if (time.algorithm == CollectiveAlgorithm::kNone) return flow;
  const double share = time.node_bytes > 0 ? links.network_share : links.inside_share;
  flow.arithmetic_share = flow.memory_share = share;
  if (time.inside_bytes > 0) flow.uses.push_back({kLinkInside, time.inside_bytes});
  if (time.node_bytes > 0) flow.uses.push_back({kLinkToNodes, time.node_bytes});
  return flow;
}

}  // namespace fsdp::planner
