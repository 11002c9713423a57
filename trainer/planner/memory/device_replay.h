// The caching allocator of the device, over a whole run.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "planner/memory/caching_allocator.h"
#include "planner/tape/tape.h"

namespace fsdp::planner {

// Free segments were given back because the device was full, and others taken.
struct AllocatorRetry {
  size_t entry = 0;      // the allocation
  int64_t segments = 0;  // that were given back
};

struct DeviceReplay {
  PeakBytes allocated;  // in blocks, each rounded up to 512 bytes
  PeakBytes reserved;   // in segments: what the process takes from the device
  int64_t retries = 0;  // how often free segments were given back because the device was full
  std::vector<AllocatorRetry> retried;
  std::optional<size_t> exhausted_at;  // the entry at which memory ran out, after which nothing is counted
};

// Makes the allocations of the tape on a device with options.capacity bytes for segments.
DeviceReplay replay_device_memory(const Tape& tape, const CachingAllocatorOptions& options);

}  // namespace fsdp::planner
