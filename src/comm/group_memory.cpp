#include "comm/group_memory.h"

#include <c10/util/Exception.h>

#include <sstream>
#include <string>

#include "comm/collective_shapes.h"
#include "comm/memory_headroom.h"

namespace fsdp {
namespace {

using Memories = std::vector<std::shared_ptr<SharedMemory>>;

struct Offer {
  Memories memories;
  std::string tickets, failure;
};

Offer offer(const std::vector<MemoryRequest>& requests, int64_t needed, const CollectiveId& id) {
  Offer offer;
  try {
    check_headroom(needed, describe("shared memory", id), memory_headroom());
    for (const MemoryRequest& request : requests) {
      offer.memories.push_back(SharedMemory::create(request.nbytes));
      offer.memories.back()->reserve(0, request.reserved);
      offer.tickets += offer.memories.back()->ticket() + "\n";
    }
  } catch (const c10::Error& error) {
    offer.failure = error.what_without_backtrace();
  }
  return offer;
}

Memories open(Communicator& group, const std::string& tickets) {
  Memories memories;
  std::istringstream in(tickets);
  for (std::string ticket; std::getline(in, ticket);) {
    memories.push_back(SharedMemory::open(ticket));
    TORCH_CHECK(memories.back(), "rank ", group.world_rank(group.rank()), " cannot reach the memory of rank ",
                group.world_rank(0), ", which it could before");
  }
  return memories;
}

}  // namespace

Memories memories_of_all(Communicator& group, const std::vector<MemoryRequest>& requests, int64_t needed,
                         const CollectiveId& id) {
  Offer offered = group.rank() == 0 ? offer(requests, needed, id) : Offer{};
  const std::string tickets = group.all_gather_bytes(offered.tickets, id).front();
  const std::string failure = group.all_gather_bytes(offered.failure, id).front();
  TORCH_CHECK(failure.empty(), "rank ", group.world_rank(0), ": ", failure);
  Memories memories = group.rank() == 0 ? std::move(offered.memories) : open(group, tickets);
  group.barrier(id);  // all have opened them
  for (const auto& memory : memories) memory->close();
  return memories;
}

std::shared_ptr<SharedMemory> memory_of_all(Communicator& group, int64_t nbytes, const CollectiveId& id) {
  return memories_of_all(group, {{nbytes, nbytes}}, nbytes, id).front();
}

}  // namespace fsdp
