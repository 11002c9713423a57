// The time of a collective on the tape.
#pragma once

#include "planner/tape/tape.h"
#include "planner/target/cluster.h"
#include "planner/target/stack.h"
#include "planner/time/collective_time.h"

namespace fsdp::planner {

// Returns the topology of the collective's group; of a message, that of the two ranks.
Topology topology_of(const Tape& tape, const TapeCollective& collective, const Cluster& cluster);

// Throws for gathers of bytes, which hosts do.
CollectiveFunction function_of(comm::CollectiveKind kind);

// Returns the bytes of the larger tensor, as the stack sends them.
int64_t collective_bytes(const TapeCollective& collective, const Stack& stack);

// Returns the time of the collective if it has its links for itself. The transfer of a message counts for its sender.
// Throws a std::invalid_argument if the cluster's links cannot carry it.
CollectiveTime price_collective(const Tape& tape, size_t collective, const Cluster& cluster, const Stack& stack = {});

}  // namespace fsdp::planner
