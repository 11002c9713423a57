// A communicator for ranks of one host, over memory that they share.
#pragma once

#include <memory>

#include "comm/rank_hosts.h"
#include "fsdp/communicator.h"

namespace fsdp {

// Over `gloo`, a group over Gloo of two or more ranks of one host, which have opened each other's memory. The Gloo
// group remains for what memory cannot tell: ranks that are lost, failures. Collective; blocks.
std::shared_ptr<Communicator> make_shm_group(std::shared_ptr<Communicator> gloo, const RankHosts& ranks);

}  // namespace fsdp
