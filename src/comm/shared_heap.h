// Tensors in memory that the other ranks of a host read.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "comm/shared_memory.h"

namespace fsdp {

// Threads: safe.
class SharedHeap : public std::enable_shared_from_this<SharedHeap> {
 public:
  explicit SharedHeap(std::shared_ptr<SharedMemory> memory) : memory_(std::move(memory)) {}

  // 1-D, kByte, not initialised, at an address that is a multiple of 64. Its memory is free again when no tensor refers
  // to it and nobody is held to read it. Throws where there is no memory, with the figure.
  at::Tensor take(int64_t nbytes);
  // Where in the memory the tensor's elements begin; nothing if they lie elsewhere.
  std::optional<int64_t> place_of(const at::Tensor& tensor) const;
  // The tensor's block stays as it is until `read` is true, which is asked from time to time; true stays true.
  void hold(const at::Tensor& tensor, std::function<bool()> read);
  // Gives memory that nobody uses back to the system, if it is more than `keep` bytes: [Note: pages that are kept].
  void trim(int64_t keep = 0);
  // Of blocks that are in use or held.
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
  void give_up(int64_t begin);
  void free_what_was_read();
  void add_gap(int64_t begin, Gap gap);
  int64_t place(int64_t nbytes);

  const std::shared_ptr<SharedMemory> memory_;
  mutable std::mutex mutex_;
  std::map<int64_t, Block> blocks_;  // by where they begin
  std::map<int64_t, Gap> gaps_;      // between them; neighbours are joined if both have pages or neither
  int64_t end_ = 0;                  // of all blocks and gaps
  int64_t in_use_ = 0;
};

}  // namespace fsdp
