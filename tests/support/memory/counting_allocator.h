// Counts allocations by LibTorch's CPU allocator and the bytes that are allocated.
#pragma once

#include <cstdint>

namespace fsdp::testing {

// While an object of this class lives, the memory of all CPU tensors of all threads is counted.
class CountedMemory {
 public:
  CountedMemory();
  ~CountedMemory();
  CountedMemory(const CountedMemory&) = delete;
  CountedMemory& operator=(const CountedMemory&) = delete;

  // Returns the number of allocations so far; allocations of 0 bytes do not count.
  int64_t allocations() const;
  int64_t current_bytes() const;
  int64_t peak_bytes() const;
  void reset_peak();
};

}  // namespace fsdp::testing
