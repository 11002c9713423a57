#include "planner/pricing/collective_price.h"

#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "comm/collective_shapes.h"
#include "planner/time/group_topology.h"

namespace fsdp::planner {

CollectiveFunction function_of(comm::CollectiveKind kind) {
  switch (kind) {
    case comm::CollectiveKind::kAllGather:
    case comm::CollectiveKind::kAllToAll:  // each rank sends as much as in a gather of its input
      return CollectiveFunction::kAllGather;
    case comm::CollectiveKind::kReduceScatter:
      return CollectiveFunction::kReduceScatter;
    case comm::CollectiveKind::kAllReduce:
      return CollectiveFunction::kAllReduce;
    case comm::CollectiveKind::kBroadcast:
    case comm::CollectiveKind::kMessage:  // the ring of a broadcast to one rank
      return CollectiveFunction::kBroadcast;
    case comm::CollectiveKind::kGatherBytes:
      break;
  }
  TORCH_CHECK(false, "fsdp plan: a ", comm::to_string(kind), " has no price on a device");
}

Topology topology_of(const Tape& tape, const TapeCollective& collective, const Cluster& cluster) {
  if (collective.kind == comm::CollectiveKind::kMessage) {
    return group_topology({std::min(collective.from, collective.to), std::max(collective.from, collective.to)},
                          cluster.ranks_per_host);
  }
  return group_topology(tape.groups().at(static_cast<size_t>(collective.group)), cluster.ranks_per_host);
}

int64_t collective_bytes(const TapeCollective& collective, const Stack& stack) {
  const bool is_gather = collective.kind == comm::CollectiveKind::kAllGather;
  const bool in_float8 = stack.float8_gathers && is_gather && collective.dtype == at::kBFloat16;
  return collective.numel * (in_float8 ? 1 : static_cast<int64_t>(c10::elementSize(collective.dtype)));
}

CollectiveTime price_collective(const Tape& tape, size_t collective, const Cluster& cluster, const Stack& stack) {
  const TapeCollective& it = tape.collectives().at(collective);
  const auto bytes = static_cast<double>(collective_bytes(it, stack));
  CollectiveTime time = collective_time(function_of(it.kind), bytes, topology_of(tape, it, cluster), cluster.links);
  if (it.meeting.role == MeetingRole::kReceives) time.transfer = time.inside_bytes = time.node_bytes = 0;
  return time;
}

}  // namespace fsdp::planner
