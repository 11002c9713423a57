#include "planner/time/collective_time.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <stdexcept>

#include "planner/time/busbw_curve.h"

namespace fsdp::planner {
namespace {

constexpr double kMicrosecond = 1e-6;

// Microseconds of one step over each kind of link.
struct StepLatency {
  double base;
  double nvlink;
  double pcie;
  double network;
};
// By Protocol: LL, LL128, Simple.
constexpr std::array<StepLatency, 3> kRingLatency = {
    {{6.6, 0.6, 1.0, 2.7}, {14.0, 1.9, 2.5, 4.0}, {8.4, 3.4, 5.7, 14.0}}};
constexpr std::array<StepLatency, 3> kTreeLatency = {
    {{6.8, 0.6, 1.0, 5.0}, {14.0, 1.25, 1.9, 8.5}, {8.4, 4.0, 4.0, 14.0}}};

// The most that LL reaches across nodes, by HostCpu: on two nodes, on more.
constexpr std::array<std::array<double, 2>, 2> kNetworkLLLimit = {{{39.0e9, 20.4e9}, {22.5e9, 19.0e9}}};

// Part of a ring's bandwidth that is left for data, beside the flags.
constexpr std::array<double, 3> kRingProtocolPart = {0.5, 0.92, 1.0};
constexpr std::array<double, 3> kTreeProtocolPart = {1 / 3.8, 120.0 / 128, 1.0};
constexpr double kTreePart = 0.92;

// Corrections of a tree's bandwidth by protocol and size: 64 B, 128 B, … 256 MiB.
constexpr std::array<std::array<double, 23>, 3> kTreeCorrection = {
    {{1, 1, 1, 1, .9, .8, .7, .7, .7, .7, .6, .5, .4, .4, .5, .6, .7, .8, .9, 1, 1, 1, 1},
     {1, 1, 1, 1, 1, .9, .8, .8, .8, .7, .6, .6, .6, .6, .6, .6, .8, .9, .9, .9, .9, 1, 1},
     {.9, .9, .9, .9, .9, .9, .9, .8, .7, .6, .6, .5, .5, .5, .5, .6, .7, .8, .7, .7, .8, .9, .9}}};

// Latency of ring all-reduces across nodes, from Ampere on, if a rank's part of a channel has at least 64 bytes.
constexpr double kRingPlateau = 1.4;
constexpr double kPlateauBytes = 64;
// Channels of NCCL across nodes. A guess; it decides about messages of some KiB only.
constexpr double kAssumedChannels = 16;

struct Attempt {
  CollectiveFunction function;
  double bytes;
  Topology topology;
  const LinkSpeed& links;
  Protocol protocol;

  size_t index() const { return static_cast<size_t>(protocol); }
};

double inside_latency(const StepLatency& step, InsideLink link) {
  return link == InsideLink::kNvLink ? step.nvlink : step.pcie;
}

// Microseconds. Simple also waits for the NIC's flush.
double network_latency(const Attempt& attempt, double of_protocol) {
  const double hops = attempt.protocol == Protocol::kSimple ? 2 : 1;
  return of_protocol + hops * attempt.links.network_latency / kMicrosecond;
}

// Microseconds that a step costs at least on any rank of a ring that crosses nodes.
double network_overhead(const Attempt& attempt) {
  if (attempt.topology.nodes == 1) return 0;
  const double post = attempt.links.host == HostCpu::kAmd ? 2.0 : 1.0;
  return attempt.protocol == Protocol::kSimple ? 3 * post : post;
}

// A broadcast passes along the ring as a gather does. NCCL's model counts one step of it if all channels are alike.
double ring_latency(const Attempt& attempt) {
  const Topology& topology = attempt.topology;
  const StepLatency& step = kRingLatency.at(attempt.index());
  const bool one_rank_a_node = topology.nodes == topology.ranks;
  const double network =
      network_latency(attempt, one_rank_a_node ? kTreeLatency.at(attempt.index()).network : step.network);
  const double inside = std::max(inside_latency(step, attempt.links.inside), network_overhead(attempt));
  const int rounds = attempt.function == CollectiveFunction::kAllReduce ? 2 : 1;
  const int steps = rounds * (topology.ranks - 1);
  const int between_nodes = rounds * (topology.nodes - 1);
  double latency = step.base + (steps - between_nodes) * inside + between_nodes * network;
  const bool plateau = attempt.function == CollectiveFunction::kAllReduce && topology.nodes > 1 &&
                       attempt.protocol == Protocol::kSimple &&
                       attempt.bytes >= kPlateauBytes * kAssumedChannels * topology.ranks;
  if (plateau) latency *= kRingPlateau;
  return latency * kMicrosecond;
}

double tree_latency(const Attempt& attempt) {
  const Topology& topology = attempt.topology;
  const StepLatency& step = kTreeLatency.at(attempt.index());
  const int depth = static_cast<int>(std::log2(topology.nodes));
  const double network = network_latency(attempt, step.network);
  const double inside = inside_latency(step, attempt.links.inside);
  const int others_of_node = topology.ranks / topology.nodes - 1;
  return (step.base + 2 * (others_of_node * inside + depth * network)) * kMicrosecond;
}

double ll_limit(const Attempt& attempt) {
  const int nodes = attempt.topology.nodes;
  if (nodes == 1) return attempt.links.ll_limit;
  return kNetworkLLLimit.at(static_cast<size_t>(attempt.links.host)).at(nodes == 2 ? 0 : 1);
}

// The group's part of what a node's NICs carry. `directions`: how often a NIC's speed counts.
double group_bandwidth(const Attempt& attempt, double directions) {
  const LinkSpeed& links = attempt.links;
  // A ring of one rank a node has no link inside a node.
  const bool inside = attempt.topology.ranks > attempt.topology.nodes;
  const double network = directions * links.node_bandwidth() / attempt.topology.groups_per_node;
  if (attempt.topology.nodes == 1) return links.ring;
  return inside ? std::min(links.ring, network) : network;
}

double ring_bandwidth(const Attempt& attempt) {
  const double bandwidth = group_bandwidth(attempt, 1) * kRingProtocolPart.at(attempt.index());
  return attempt.protocol == Protocol::kLL ? std::min(bandwidth, ll_limit(attempt)) : bandwidth;
}

double tree_bandwidth(const Attempt& attempt) {
  // Two nodes exchange each half once, while a ring passes everything twice.
  const double directions = attempt.topology.nodes == 2 ? 2 : 1;
  double bandwidth = group_bandwidth(attempt, directions) * kTreePart * kTreeProtocolPart.at(attempt.index());
  if (attempt.protocol == Protocol::kLL) bandwidth = std::min(bandwidth, ll_limit(attempt));
  const auto& correction = kTreeCorrection.at(attempt.index());
  const double size = std::floor(std::log2(attempt.bytes / 64));
  if (size < 0 || size >= static_cast<double>(correction.size())) return bandwidth;
  return bandwidth * correction.at(static_cast<size_t>(size));
}

CollectiveTime ring_time(const Attempt& attempt) {
  const Topology& topology = attempt.topology;
  const double bus_bytes = attempt.bytes * bus_factor(attempt.function, topology.ranks);
  const double sent = bus_bytes / kRingProtocolPart.at(attempt.index());
  return {.latency = attempt.links.launch + ring_latency(attempt),
          .transfer = bus_bytes / ring_bandwidth(attempt),
          .inside_bytes = topology.ranks > topology.nodes ? sent : 0,
          .node_bytes = topology.nodes > 1 ? sent * topology.groups_per_node : 0,
          .algorithm = CollectiveAlgorithm::kRing,
          .protocol = attempt.protocol};
}

CollectiveTime tree_time(const Attempt& attempt) {
  const Topology& topology = attempt.topology;
  const double sent = 2 * attempt.bytes / (kTreePart * kTreeProtocolPart.at(attempt.index()));
  const double out = topology.nodes == 2 ? sent / 2 : sent;
  return {.latency = attempt.links.launch + tree_latency(attempt),
          .transfer = 2 * attempt.bytes / tree_bandwidth(attempt),
          .inside_bytes = topology.ranks > topology.nodes ? sent : 0,
          .node_bytes = out * topology.groups_per_node,
          .algorithm = CollectiveAlgorithm::kTree,
          .protocol = attempt.protocol};
}

// Reductions inside the switch send fewer bytes than a ring: never more than the links carry in that time.
CollectiveTime measured_time(const Attempt& attempt, const BusbwCurve& curve) {
  const Topology& topology = attempt.topology;
  const double bus_bytes = attempt.bytes * bus_factor(attempt.function, topology.ranks);
  const double seconds = bus_bytes / busbw_at(curve, attempt.bytes);
  const double latency = std::min(seconds, attempt.links.launch + ring_latency(attempt));
  const double transfer = seconds - latency;
  const double node = topology.nodes > 1 ? std::min(bus_bytes, attempt.links.node_bandwidth() * transfer) : 0;
  return {.latency = latency,
          .transfer = transfer,
          .inside_bytes = topology.ranks > topology.nodes ? std::min(bus_bytes, attempt.links.ring * transfer) : 0,
          .node_bytes = node,
          .algorithm = CollectiveAlgorithm::kMeasured};
}

bool is_possible(const LinkSpeed& links, Protocol protocol) {
  if (!links.protocols.at(static_cast<size_t>(protocol))) return false;
  return protocol != Protocol::kLL128 || links.inside == InsideLink::kNvLink;
}

}  // namespace

double bus_factor(CollectiveFunction function, int ranks) {
  const double others = static_cast<double>(ranks - 1) / ranks;
  switch (function) {
    case CollectiveFunction::kAllReduce:
      return 2 * others;
    case CollectiveFunction::kBroadcast:
      return 1;
    case CollectiveFunction::kAllGather:
    case CollectiveFunction::kReduceScatter:
      break;
  }
  return others;
}

CollectiveTime collective_time(CollectiveFunction function, double bytes, const Topology& topology,
                               const LinkSpeed& links) {
  if (topology.ranks <= 1 || bytes <= 0) return {};
  if (const BusbwCurve* curve = find_curve(links, function, topology)) {
    return measured_time({function, bytes, topology, links, Protocol::kSimple}, *curve);
  }
  const bool trees = links.trees && function == CollectiveFunction::kAllReduce && topology.nodes > 1;
  CollectiveTime best{.transfer = std::numeric_limits<double>::infinity()};
  const auto consider = [&](const CollectiveTime& time) {
    if (time.seconds() < best.seconds()) best = time;
  };
  for (const Protocol protocol : {Protocol::kLL, Protocol::kLL128, Protocol::kSimple}) {
    if (!is_possible(links, protocol)) continue;
    const Attempt attempt{function, bytes, topology, links, protocol};
    consider(ring_time(attempt));
    if (trees) consider(tree_time(attempt));
  }
  if (best.algorithm == CollectiveAlgorithm::kNone) {
    throw std::invalid_argument("no protocol of NCCL is allowed that these links can use, or they have no bandwidth");
  }
  return best;
}

}  // namespace fsdp::planner
