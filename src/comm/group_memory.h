// Memory that one rank of a group provides for all ranks on its host.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "comm/shared_memory.h"
#include "fsdp/communicator.h"

namespace fsdp {

struct MemoryRequest {
  int64_t nbytes = 0;
  int64_t reserved = 0;  // the first bytes, of which the pages are to be there at once
};

// Zeros, which rank 0 provides; where it cannot, all ranks throw why. `needed`: bytes that the host must have left, the
// figure of that error. Each takes a file descriptor for a while. Collective; blocks.
std::vector<std::shared_ptr<SharedMemory>> memories_of_all(Communicator& group,
                                                           const std::vector<MemoryRequest>& requests, int64_t needed,
                                                           const CollectiveId& id);
// One, all of it reserved; it stays where it is mapped.
std::shared_ptr<SharedMemory> memory_of_all(Communicator& group, int64_t nbytes, const CollectiveId& id);

}  // namespace fsdp
