// The CPU's allocator, watched: how often memory is asked for, and how much is held.
#pragma once

#include <cstdint>

namespace fsdp::testing {

// While an object of this class lives, all tensors' memory on the CPU is counted, of all threads.
class CountedMemory {
 public:
  CountedMemory();
  ~CountedMemory();
  CountedMemory(const CountedMemory&) = delete;
  CountedMemory& operator=(const CountedMemory&) = delete;

  // Of more than no bytes, so far.
  int64_t allocations() const;
  int64_t current_bytes() const;
  int64_t peak_bytes() const;
  void reset_peak();
};

}  // namespace fsdp::testing
