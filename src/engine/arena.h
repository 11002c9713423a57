// One piece of memory for buffers of which only a few are in use at a time.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "schedule/block_places.h"

namespace fsdp::engine {

// BlockPlaces decides where blocks lie in the memory. Threads: guarded by the caller's lock.
class Arena {
 public:
  explicit Arena(c10::Device device) : device_(device) {}

  // Returns a kByte tensor of `nbytes`, or nullopt if no gap is large enough.
  std::optional<at::Tensor> take(int64_t nbytes);
  // Releases a block. Returns false if it does not come from this arena.
  bool release(const at::Tensor& block);

  bool empty() const { return places_.empty(); }
  int64_t capacity() const { return memory_.defined() ? memory_.numel() : 0; }
  const at::Tensor& memory() const { return memory_; }
  // Releases the memory and allocates `nbytes` instead, none if 0. The arena must be empty.
  void resize(int64_t nbytes);

 private:
  c10::Device device_;
  at::Tensor memory_;  // kByte
  schedule::BlockPlaces places_;
};

}  // namespace fsdp::engine
