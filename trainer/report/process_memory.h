// Memory of this process on the host.
#pragma once

#include <cstdint>

namespace fsdp::trainer {

// Bytes of this process that are in memory.
struct ProcessMemory {
  int64_t own = 0;     // anonymous pages, and those that it shares with other ranks
  int64_t mapped = 0;  // pages of mapped files: the system may drop them and read them again
  int64_t peak = 0;    // the largest sum of the two, since the process began or PeakMemory has looked away from it
};
ProcessMemory process_memory();

// The largest ProcessMemory::own. The system counts peaks of the sum alone: what lies between two looks is known only
// as far as the sum's peak exceeds all that was mapped. Not thread-safe.
class PeakMemory {
 public:
  // Looks, and leaves the sum's peak so far out of account: files that were mapped until now, such as a model's
  // weights, are part of it.
  void restart();
  // Looks. Returns the largest so far.
  ProcessMemory look();

 private:
  ProcessMemory most_;           // `own` and `mapped`: the largest seen
  int64_t mapped_since_ = 0;     // the largest `mapped` since restart()
  bool peak_is_of_now_ = false;  // whether the sum's peak counts from restart()
};

// Keeps memory that was freed for the allocations that follow, as long as the process lives: a training step makes and
// frees the same large tensors over and over, and by default glibc gives them back to the system, which clears each
// page again at its next use. Has an effect with glibc's allocator only. To be called before the first large
// allocation.
void keep_freed_memory();

}  // namespace fsdp::trainer
