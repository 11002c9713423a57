#include "comm/shm/group_memory.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <sstream>
#include <string>

#include "comm/collective_shapes.h"
#include "comm/failure.h"
#include "comm/shm/memory_headroom.h"

namespace fsdp::comm {
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

// Returns the sizes of the requests, in one line.
std::string sizes_of(const std::vector<MemoryRequest>& requests) {
  std::string text;
  for (const MemoryRequest& request : requests) text += c10::str(request.nbytes, " ");
  return text + "\n";
}

void check_sizes(Communicator& group, const std::vector<std::string>& texts, const CollectiveId& id) {
  const auto line_of = [](const std::string& text) { return text.substr(0, text.find('\n')); };
  for (size_t rank = 1; rank < texts.size(); ++rank) {
    if (line_of(texts[rank]) == line_of(texts[0])) continue;
    Failure{Failure::Kind::kRanksDiffer,
            c10::str(describe("shared memory", id), ": rank ", group.world_rank(static_cast<int>(rank)), " wants ",
                     line_of(texts[rank]), "bytes, rank ", group.world_rank(0), " ", line_of(texts[0]), "bytes")}
        .raise();
  }
}

Memories open_all(Communicator& group, const std::string& tickets, const OpenMemory& open) {
  Memories memories;
  std::istringstream in(tickets);
  for (std::string ticket; std::getline(in, ticket);) {
    memories.push_back(open(ticket));
    if (memories.back()) continue;
    Failure{.reason = c10::str("rank ", group.world_rank(group.rank()), " cannot reach the memory of rank ",
                               group.world_rank(0), ", which it could before")}
        .raise();
  }
  return memories;
}

Memories provide(Communicator& group, const std::vector<MemoryRequest>& requests, int64_t needed,
                 const OpenMemory& open, const CollectiveId& id) {
  Offer offered = group.rank() == 0 ? offer(requests, needed, id) : Offer{};
  const std::vector<std::string> texts = group.all_gather_bytes(sizes_of(requests) + offered.tickets, id);
  check_sizes(group, texts, id);
  const std::string tickets = texts.front().substr(texts.front().find('\n') + 1);
  const std::string failure = group.all_gather_bytes(offered.failure, id).front();
  TORCH_CHECK(failure.empty(), "rank ", group.world_rank(0), ": ", failure);
  Memories memories = group.rank() == 0 ? std::move(offered.memories) : open_all(group, tickets, open);
  group.barrier(id);  // all ranks have opened the memories
  for (const auto& memory : memories) memory->close();
  return memories;
}

}  // namespace

Memories memories_of_all(Communicator& group, const std::vector<MemoryRequest>& requests, int64_t needed,
                         const CollectiveId& id) {
  return provide(group, requests, needed, SharedMemory::open, id);
}

std::shared_ptr<SharedMemory> memory_of_all(Communicator& group, int64_t nbytes, const CollectiveId& id) {
  return provide(group, {{nbytes, nbytes}}, nbytes, SharedMemory::open_to_stay, id).front();
}

}  // namespace fsdp::comm
