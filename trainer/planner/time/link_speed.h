// The speed of the links inside a node and between nodes, as times of collectives need it. Seconds and bytes; a
// bandwidth is one way.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace fsdp::planner {

enum class CollectiveFunction : uint8_t { kAllGather, kReduceScatter, kAllReduce, kBroadcast };

// NCCL's protocols.
enum class Protocol : uint8_t { kLL, kLL128, kSimple };

enum class InsideLink : uint8_t { kNvLink, kPcie };

enum class HostCpu : uint8_t { kIntel, kAmd };

// A group of ranks, spread evenly over nodes.
struct Topology {
  int ranks = 1;
  int nodes = 1;
  // Groups like this one that use a node's NICs at the same time: with a replica group for each of 8 places of a node,
  // 8.
  int groups_per_node = 1;
};

struct BusbwPoint {
  double bytes = 0;
  double busbw = 0;

  bool operator==(const BusbwPoint&) const = default;
};

// A measured bus bandwidth by size. Points ascend in bytes; there is at least one.
struct BusbwCurve {
  CollectiveFunction function = CollectiveFunction::kAllReduce;
  int ranks = 0;
  int nodes = 1;
  std::vector<BusbwPoint> points = {};

  bool operator==(const BusbwCurve&) const = default;
};

struct LinkSpeed {
  InsideLink inside = InsideLink::kNvLink;
  // Bus bandwidth of a ring of large messages inside a node.
  double ring = 0;
  // The most that protocol LL reaches inside a node.
  double ll_limit = 0;

  double nic = 0;                // of one NIC
  int nics = 0;                  // of a node
  double nic_efficiency = 0.92;  // of large messages. A guess
  double oversubscription = 1;   // of the network's upper levels
  double network_latency = 0;    // of a hop, beyond NCCL's own figure
  HostCpu host = HostCpu::kIntel;

  double host_copy = 0;  // between a device and pinned memory
  double launch = 5e-6;  // of a collective's kernels on all ranks. A guess
  // NCCL takes LL128 only if a NIC is near its device (tuning.cc: up to PXB, from Hopper on up to PXN).
  std::array<bool, 3> protocols = {true, true, true};  // by Protocol
  bool trees = true;                                   // whether all-reduces across nodes may use trees

  // Parts of the device that a running collective takes from matrix products and from memory-bound kernels. Source:
  // Calculon's processor_usage of A100, 15 % inside a node and 2 % across; that memory loses the same is a guess.
  double inside_share = 0.15;
  double network_share = 0.02;

  // Each replaces the formula for its own function, ranks and nodes.
  std::vector<BusbwCurve> curves = {};

  // Bytes per second out of a node.
  double node_bandwidth() const { return nic * nics * nic_efficiency / oversubscription; }

  bool operator==(const LinkSpeed&) const = default;
};

}  // namespace fsdp::planner
