// Finds out which ranks of a group are on one host, and holds their shared memory.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/shm/memory_headroom.h"
#include "comm/shm/shared_heap.h"
#include "comm/shm/shared_memory.h"
#include "fsdp/communicator.h"

namespace fsdp::comm {

// Returns how many bytes may be kept although they are not in use: spare_memory().
using SpareMemory = std::function<int64_t()>;

// What a rank knows of the ranks of a group. Subgroups and twins have parts of this.
struct RankHosts {
  std::shared_ptr<SharedHeap> own;                      // this rank's memory, for the other ranks of its host
  std::vector<std::shared_ptr<SharedMemory>> of_ranks;  // the memory it has mapped; null for ranks on other hosts
  std::vector<int> hosts;                               // the host of each rank, as the first rank there
  SpareMemory spare;                                    // for this rank's host

  RankHosts of(const std::vector<int>& members) const;
};

// Ranks numbered host by host, with the same number on each: rank = host * ranks_per_host + place.
struct HostGrid {
  int hosts = 1;
  int ranks_per_host = 1;
};
// Returns the grid, or none if the ranks are arranged differently. `hosts`: as in RankHosts.
std::optional<HostGrid> grid_of(const std::vector<int>& hosts);

// How a rank finds the ranks on its host: ranks that give the same name and whose memory it can open.
struct HostProbe {
  std::string name;  // empty: the host's own name
  OpenMemory open = SharedMemory::open_to_stay;
  SpareMemory spare = spare_memory;
  int64_t heap_nbytes = 0;  // address space for the memory that this rank shares; 0: the size of the machine's memory
};

// The same on all ranks of the group, except for what is mapped.
struct FoundHosts {
  // None if a rank cannot share memory at all, or if two ranks reach a third one, but not each other.
  std::optional<RankHosts> ranks;
  // Names the first rank that cannot share memory, or otherwise the first that is not on the host of another rank, and
  // why; empty: none.
  std::string apart;
};
// Finds out which ranks of `group` share a host. Collective; blocks.
FoundHosts find_hosts(Communicator& group, const HostProbe& probe);

}  // namespace fsdp::comm
