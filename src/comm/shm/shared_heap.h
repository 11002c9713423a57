// Allocates tensors in memory that the other ranks of a host read.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "base/mutex.h"
#include "comm/shm/shared_memory.h"

namespace fsdp::comm {

// Threads: safe.
class SharedHeap : public std::enable_shared_from_this<SharedHeap> {
 public:
  explicit SharedHeap(std::shared_ptr<SharedMemory> memory) : memory_(std::move(memory)) {}

  // Returns a tensor: 1-D, kByte, not initialised, at an address that is a multiple of 64. Its memory is free again
  // when no tensor refers to it and no reader holds it (hold()). Throws, with the figure, if there is too little
  // memory.
  at::Tensor take(int64_t nbytes);
  // Returns the offset in the memory where the tensor's elements begin, or nothing if they lie elsewhere.
  std::optional<int64_t> place_of(const at::Tensor& tensor) const;
  // Keeps the tensor's block unchanged until `read` returns true. `read` is called from time to time; once true, it
  // must stay true.
  void hold(const at::Tensor& tensor, std::function<bool()> read);
  // Releases unused memory to the system if it is more than `keep` bytes: [Note: pages that are kept].
  void trim(int64_t keep = 0);
  // Returns the bytes of the blocks that are in use or held.
  int64_t nbytes_in_use() const;

  const SharedMemory& memory() const { return *memory_; }

 private:
  struct Block {
    int64_t nbytes = 0;
    std::vector<std::function<bool()>> readers;
    bool referred = true;
  };
  struct Gap {
    int64_t nbytes = 0;
    bool backed = false;  // has pages
  };
  void release(int64_t begin);
  void release_read_blocks() FSDP_REQUIRES(mutex_);
  void add_gap(int64_t begin, Gap gap) FSDP_REQUIRES(mutex_);
  int64_t place(int64_t nbytes);

  const std::shared_ptr<SharedMemory> memory_;
  mutable base::Mutex mutex_;
  std::map<int64_t, Block> blocks_ FSDP_GUARDED_BY(mutex_);  // by offset
  // Between blocks. Neighbours are joined if both have pages or neither has.
  std::map<int64_t, Gap> gaps_ FSDP_GUARDED_BY(mutex_);
  int64_t end_ FSDP_GUARDED_BY(mutex_) = 0;  // end of all blocks and gaps
  int64_t in_use_ FSDP_GUARDED_BY(mutex_) = 0;
};

}  // namespace fsdp::comm
