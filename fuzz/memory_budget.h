// A limit on the memory that a reader may use at a time.
#pragma once

#include <cstddef>

namespace fsdp::fuzz {

// Ends the process with a message if more than `bytes` bytes that were allocated during the lifetime of this object are
// in use at the same time. Counts all threads. Only one object may exist at a time.
class MemoryBudget {
 public:
  explicit MemoryBudget(size_t bytes);
  ~MemoryBudget();
  MemoryBudget(const MemoryBudget&) = delete;
  MemoryBudget& operator=(const MemoryBudget&) = delete;
};

}  // namespace fsdp::fuzz
