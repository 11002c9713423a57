// How much memory a reader may have at a time.
#pragma once

#include <cstddef>

namespace fsdp::fuzz {

// While it lives, the process is ended, with a message, when more than `bytes` allocated since then are in use at a
// time. One at a time; all threads count.
class MemoryBudget {
 public:
  explicit MemoryBudget(size_t bytes);
  ~MemoryBudget();
  MemoryBudget(const MemoryBudget&) = delete;
  MemoryBudget& operator=(const MemoryBudget&) = delete;
};

}  // namespace fsdp::fuzz
