// Chooses the communicator by the hosts of ranks on the CPU: shared memory within a host, Gloo among hosts.
#pragma once

#include <memory>

#include "comm/hosts/rank_hosts.h"
#include "fsdp/backends.h"
#include "fsdp/communicator.h"

namespace fsdp::comm {

// Makes a communicator over `gloo`, a group over Gloo whose ranks `ranks` describes: over shared memory if all ranks
// are on one host; over shared memory and Gloo if each of several hosts has the same number of consecutive ranks, two
// or more; else returns `gloo` itself. Collective; blocks.
std::shared_ptr<Communicator> make_group_over(std::shared_ptr<Communicator> gloo, const RankHosts& ranks);

// Finds out on which hosts the ranks are, then does the same. Also returns the reason. Collective; blocks.
ChosenCommunicator share_memory(std::shared_ptr<Communicator> gloo, const HostProbe& probe = {});

// Makes a communicator for ranks of one host, which meet at `point`. Throws if they cannot all share memory.
std::shared_ptr<Communicator> make_shm_communicator(const std::shared_ptr<MeetingPoint>& point, int rank, int size,
                                                    const GlooOptions& options = {});

}  // namespace fsdp::comm
