// A communicator for ranks of one host, over memory that they share.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "comm/shared_memory.h"
#include "fsdp/communicator.h"

namespace fsdp {

// Over shared memory if the ranks of `host`, a group over Gloo, can reach each other's, else `host` itself, on all
// ranks; and why. Collective; blocks. The Gloo group remains for what memory cannot tell: ranks that are lost,
// failures.
using OpenMemory = std::function<std::shared_ptr<SharedMemory>(const std::string& ticket)>;
ChosenCommunicator share_memory(std::shared_ptr<Communicator> host, const OpenMemory& open = SharedMemory::open);

// Ranks of this host, which meet at `point`. Where they cannot share memory: an error.
std::shared_ptr<Communicator> make_shm_communicator(const std::shared_ptr<MeetingPoint>& point, int rank, int size,
                                                    const GlooOptions& options = {});

}  // namespace fsdp
