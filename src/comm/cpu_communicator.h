// The communicator that suits where ranks on the CPU are: memory within a host, Gloo among hosts.
#pragma once

#include <memory>

#include "comm/rank_hosts.h"
#include "fsdp/communicator.h"

namespace fsdp {

// Over `gloo`, a group over Gloo, of whose ranks `ranks` is known: memory that they share where all are on one host;
// memory and Gloo where each of several hosts has the same number of them, two or more, in a row; else `gloo` itself.
// Collective; blocks.
std::shared_ptr<Communicator> make_group_over(std::shared_ptr<Communicator> gloo, const RankHosts& ranks);

// The same after the ranks have found out where they are; and why.
ChosenCommunicator share_memory(std::shared_ptr<Communicator> gloo, const HostProbe& probe = {});

// Ranks of one host, which meet at `point`. Where they cannot all share memory: an error.
std::shared_ptr<Communicator> make_shm_communicator(const std::shared_ptr<MeetingPoint>& point, int rank, int size,
                                                    const GlooOptions& options = {});

}  // namespace fsdp
