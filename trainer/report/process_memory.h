// The memory of this process on the host.
#pragma once

#include <cstdint>

namespace fsdp::trainer {

// Bytes of this process that are in physical memory.
struct ProcessMemory {
  int64_t own = 0;     // anonymous pages, and pages shared with other ranks
  int64_t mapped = 0;  // pages of mapped files: the system may drop them and read them again
  int64_t peak = 0;    // the largest sum of the two since the process began or PeakMemory::restart()
};
ProcessMemory process_memory();

// Tracks the largest ProcessMemory::own. The system only counts peaks of the sum, so a peak between two calls of look()
// is known only as far as the sum's peak exceeds the largest `mapped`. Not thread-safe.
class PeakMemory {
 public:
  // Calls look() and restarts the system's peak of the sum, which includes files that were mapped until now, such as a
  // model's weights.
  void restart();
  // Measures the memory. Returns the largest values so far.
  ProcessMemory look();

 private:
  ProcessMemory most_;           // `own` and `mapped`: the largest seen
  int64_t mapped_since_ = 0;     // the largest `mapped` since restart()
  bool peak_is_of_now_ = false;  // whether the sum's peak counts from restart()
};

// Keeps freed memory for later allocations for the rest of the process. A training step allocates and frees the same
// large tensors again and again; by default, glibc returns them to the system, which clears each page again at its next
// use. Has an effect with glibc's allocator only. Must be called before the first large allocation.
void keep_freed_memory();

}  // namespace fsdp::trainer
