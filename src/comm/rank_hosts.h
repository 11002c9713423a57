// Which ranks of a group are on one host, and their memory there.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/memory_headroom.h"
#include "comm/shared_heap.h"
#include "comm/shared_memory.h"
#include "fsdp/communicator.h"

namespace fsdp {

// Bytes that may be kept although they are not in use: spare_memory().
using SpareMemory = std::function<int64_t()>;

// What a rank knows of the ranks of a group. Subgroups and twins have parts of it.
struct RankHosts {
  std::shared_ptr<SharedHeap> own;                      // this rank's memory for the others of its host
  std::vector<std::shared_ptr<SharedMemory>> of_ranks;  // what it has mapped; null for those on other hosts
  std::vector<int> hosts;                               // of each rank, by the first rank there
  SpareMemory spare;                                    // of this rank's host

  RankHosts of(const std::vector<int>& members) const;
};

// Ranks host by host, as many on each: rank = host * ranks_per_host + place.
struct HostGrid {
  int hosts = 1;
  int ranks_per_host = 1;
};
// None where ranks lie otherwise. `hosts`: as in RankHosts.
std::optional<HostGrid> grid_of(const std::vector<int>& hosts);

// How a rank finds out who is on its host: those that give the same name and whose memory it can open.
struct HostProbe {
  std::string name;  // empty: that of the host
  OpenMemory open = SharedMemory::open_to_stay;
  SpareMemory spare = spare_memory;
  int64_t heap_nbytes = 0;  // of addresses for the memory that this rank shares; 0: as much as the machine has memory
};

// On all ranks of the group the same, but for what is mapped.
struct FoundHosts {
  // None where a rank cannot share memory at all, or two ranks reach a third one, but not each other.
  std::optional<RankHosts> ranks;
  // The first rank that cannot share memory, or else that is not on the host of another one, and why; empty: none.
  std::string apart;
};
// Collective; blocks.
FoundHosts find_hosts(Communicator& group, const HostProbe& probe);

}  // namespace fsdp
