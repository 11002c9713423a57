#include "planner/time/collective_flow.h"

#include <algorithm>

namespace fsdp::planner {

std::vector<double> node_links(const LinkSpeed& links) { return {links.ring, links.node_bandwidth()}; }

namespace {

// Blocks of a ring's channels stay on their multiprocessors however slowly data come, so what a ring across hosts takes
// is what it takes inside them.
double arithmetic_share(const CollectiveTime& time, const LinkSpeed& links) {
  const double inside = time.inside_bytes > 0 ? links.inside_share : 0;
  return std::max(inside, time.node_bytes > 0 ? links.network_share : links.inside_share);
}

// Memory is read and written only as fast as data come.
double memory_share(const CollectiveTime& time, const LinkSpeed& links) {
  if (time.node_bytes <= 0) return links.inside_share;
  if (time.inside_bytes <= 0 || time.transfer <= 0) return links.network_share;
  const double rate = std::min(1.0, time.inside_bytes / time.transfer / links.ring);
  return std::max(links.network_share, links.inside_share * rate);
}

}  // namespace

ReplayFlow collective_flow(const CollectiveTime& time, const LinkSpeed& links) {
  ReplayFlow flow{.latency = time.latency, .transfer = time.transfer};
  if (time.algorithm == CollectiveAlgorithm::kNone) return flow;
  flow.arithmetic_share = arithmetic_share(time, links);
  flow.memory_share = memory_share(time, links);
  if (time.inside_bytes > 0) flow.uses.push_back({kLinkInside, time.inside_bytes});
  if (time.node_bytes > 0) flow.uses.push_back({kLinkToNodes, time.node_bytes});
  return flow;
}

}  // namespace fsdp::planner
