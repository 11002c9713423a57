// The time of a collective that has its links for itself, by NCCL's own model of rings and trees.
//
// Source of all latencies and factors: NCCL, src/graph/tuning.cc (ncclTopoTuneModel, ncclTopoGetAlgoTime), of June
// 2026. NCCL's limits for each channel of LL128 and of trees are left out: with the channels that it opens on machines
// with NVLink, they exceed the ring's bandwidth.
#pragma once

#include <cstdint>

#include "planner/time/link_speed.h"

namespace fsdp::planner {

enum class CollectiveAlgorithm : uint8_t { kNone, kRing, kTree, kMeasured };

struct CollectiveTime {
  double latency = 0;       // seconds in which the links are nearly empty
  double transfer = 0;      // seconds of moving the data
  double inside_bytes = 0;  // through the link of each rank inside its node
  double node_bytes = 0;    // out of each node, by all groups that share its NICs
  CollectiveAlgorithm algorithm = CollectiveAlgorithm::kNone;
  Protocol protocol = Protocol::kSimple;

  double seconds() const { return latency + transfer; }
};

// Bytes that each link of a ring carries, per byte of the collective: busbw / algbw.
double bus_factor(CollectiveFunction function, int ranks);

// Returns the fastest of the protocols and algorithms that NCCL would consider, or the measured time. `bytes`: of the
// larger tensor. All is zero for one rank, and for no bytes: NCCL then starts nothing. Throws std::invalid_argument if
// there is no way.
CollectiveTime collective_time(CollectiveFunction function, double bytes, const Topology& topology,
                               const LinkSpeed& links);

}  // namespace fsdp::planner
