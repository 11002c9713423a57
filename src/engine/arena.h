// One piece of memory for buffers of which only a few live at a time.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "schedule/block_places.h"

namespace fsdp {

// Where blocks lie in it: BlockPlaces. Threads: the caller's lock.
class Arena {
 public:
  explicit Arena(c10::Device device) : device_(device) {}

  // A kByte tensor of `nbytes`; nothing where no gap is large enough.
  std::optional<at::Tensor> take(int64_t nbytes);
  // Whether the block came from here and is free now.
  bool give_back(const at::Tensor& block);

  bool empty() const { return places_.empty(); }
  int64_t capacity() const { return memory_.defined() ? memory_.numel() : 0; }
  const at::Tensor& memory() const { return memory_; }
  // Gives up the memory, and allocates as much as this, if any. The arena must be empty.
  void resize(int64_t nbytes);

 private:
  c10::Device device_;
  at::Tensor memory_;  // kByte
  schedule::BlockPlaces places_;
};

}  // namespace fsdp
