// One rank of many, without the others: collectives are noted on the tape and are done.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <memory>

#include "fsdp/communicator.h"
#include "planner/ranks/planned_peers.h"
#include "planner/tape/tape.h"

namespace fsdp::planner {

// How ranks that compute on CPUs reach each other.
enum class HostLinks : uint8_t {
  kNone,    // they compute on devices
  kGloo,    // over Gloo
  kMemory,  // through shared memory within a host, over Gloo between hosts
};

// Which ranks share a host, and which a stage of a pipeline.
struct RankLayout {
  int world = 1;
  int per_host = 1;
  HostLinks links = HostLinks::kNone;
  // Of a pipeline, whose stages have equal numbers of neighbouring ranks: the planned ranks of all stages, which must
  // outlive the communicators. Null: without a pipeline.
  PlannedPeers* peers = nullptr;

  int stage_of(int rank) const { return peers == nullptr ? 0 : rank / (world / peers->count()); }
};

// Returns the communicator of all ranks of the plan, as seen by `rank`. Collectives behave as over NCCL on a device
// with streams, and else as the layout says. (Over kMemory, a group of several hosts with several ranks each really
// shares memory within a host; here it is over Gloo.) Every rank is taken to send the same bytes as the planned rank of
// its stage, except that names of hosts follow the layout. Of messages, only small tensors of integers in host memory
// have values. `tape` must outlive the communicator and its groups.
std::shared_ptr<Communicator> make_planned_communicator(Tape& tape, int rank, const RankLayout& layout);

}  // namespace fsdp::planner
