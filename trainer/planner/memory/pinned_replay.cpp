#include "planner/memory/pinned_replay.h"

#include <bit>
#include <map>
#include <unordered_map>

namespace fsdp::planner {

int64_t replay_pinned_memory(const Tape& tape) {
  std::map<uint64_t, int64_t> free;              // size of blocks -> how many are free
  std::unordered_map<int64_t, uint64_t> in_use;  // allocation -> size of its block
  uint64_t held = 0;
  for (const TapeEntry& entry : tape.entries()) {
    if (entry.kind == TapeKind::kAllocation && entry.place == Place::kPinnedHost && entry.bytes > 0) {
      const uint64_t size = std::bit_ceil(static_cast<uint64_t>(entry.bytes));
      in_use.emplace(entry.id, size);
      int64_t& reusable = free[size];
      if (reusable > 0) {
        --reusable;
      } else {
        held += size;
      }
    } else if (entry.kind == TapeKind::kFree) {
      if (const auto found = in_use.find(entry.id); found != in_use.end()) {
        ++free[found->second];
        in_use.erase(found);
      }
    }
  }
  return static_cast<int64_t>(held);
}

}  // namespace fsdp::planner
