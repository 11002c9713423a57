// A communicator for ranks of one host, over memory that they share.
#pragma once

#include <memory>

#include "comm/hosts/rank_hosts.h"
#include "fsdp/communicator.h"

namespace fsdp::comm {

// Makes a communicator over `gloo`, a Gloo group of two or more ranks of one host that have opened each other's memory.
// The Gloo group stays in use for what shared memory cannot tell: lost ranks and failures. Collective; blocks.
std::shared_ptr<Communicator> make_shm_group(std::shared_ptr<Communicator> gloo, const RankHosts& ranks);

}  // namespace fsdp::comm
