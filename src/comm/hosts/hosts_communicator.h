// A communicator for ranks of several hosts: over memory within a host, over Gloo among hosts.
#pragma once

#include <memory>

#include "comm/hosts/rank_hosts.h"
#include "fsdp/communicator.h"

namespace fsdp::comm {

// Makes a communicator over `gloo`, a Gloo group whose ranks are arranged in `grid`: two or more hosts with two or more
// ranks on each. Each rank has opened the memory of the ranks on its host. Collective; blocks.
std::shared_ptr<Communicator> make_hosts_group(std::shared_ptr<Communicator> gloo, const RankHosts& ranks,
                                               const HostGrid& grid);

}  // namespace fsdp::comm
