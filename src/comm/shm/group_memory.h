// Memory that one rank of a group provides for all ranks on its host.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "comm/shm/shared_memory.h"
#include "fsdp/communicator.h"

namespace fsdp::comm {

struct MemoryRequest {
  int64_t nbytes = 0;
  int64_t reserved = 0;  // leading bytes, whose pages are provided at once
};

// Returns memory for each request, filled with zeros, which rank 0 provides. If it cannot, all ranks throw the reason.
// `needed`: the bytes that the host must have left, which that error states. Each request takes a file descriptor until
// the call returns. Collective; blocks.
std::vector<std::shared_ptr<SharedMemory>> memories_of_all(Communicator& group,
                                                           const std::vector<MemoryRequest>& requests, int64_t needed,
                                                           const CollectiveId& id);
// Returns memory for one request, all of it reserved. It stays where it is mapped.
std::shared_ptr<SharedMemory> memory_of_all(Communicator& group, int64_t nbytes, const CollectiveId& id);

}  // namespace fsdp::comm
