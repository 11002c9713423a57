#include "planner/memory/device_replay.h"

#include <unordered_map>

namespace fsdp::planner {

DeviceReplay replay_device_memory(const Tape& tape, const CachingAllocatorOptions& options) {
  CachingAllocator allocator(options);
  std::unordered_map<int64_t, uint64_t> addresses;
  DeviceReplay replay;
  const std::vector<TapeEntry>& entries = tape.entries();
  for (size_t i = 0; i < entries.size() && !replay.exhausted_at; ++i) {
    const TapeEntry& entry = entries[i];
    if (entry.kind == TapeKind::kAllocation && entry.place == Place::kDevice) {
      const int64_t segments = allocator.segments(), retries = allocator.retries();
      try {
        addresses.emplace(entry.id, allocator.allocate(entry.bytes, entry.stream));
        if (allocator.retries() > retries) replay.retried.push_back({i, segments + 1 - allocator.segments()});
      } catch (const DeviceMemoryExhausted&) {
        replay.exhausted_at = i;
      }
    } else if (entry.kind == TapeKind::kFree) {
      const auto found = addresses.find(entry.id);
      if (found == addresses.end()) continue;
      allocator.free(found->second);
      addresses.erase(found);
    }
  }
  replay.allocated = allocator.allocated();
  replay.reserved = allocator.reserved();
  replay.retries = allocator.retries();
  return replay;
}

}  // namespace fsdp::planner
