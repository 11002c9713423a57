// A communicator for ranks of several hosts: over memory within a host, over Gloo among hosts.
#pragma once

#include <memory>

#include "comm/rank_hosts.h"
#include "fsdp/communicator.h"

namespace fsdp {

// Over `gloo`, a group over Gloo whose ranks lie in `grid`: two or more hosts, two or more ranks on each, which have
// opened the memory of those on their host. Collective; blocks.
std::shared_ptr<Communicator> make_hosts_group(std::shared_ptr<Communicator> gloo, const RankHosts& ranks,
                                               const HostGrid& grid);

}  // namespace fsdp
