// A pool of free buffers for reuse.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <optional>

namespace fsdp::base {

// Stores kByte tensors, each of which covers its whole memory. Not thread-safe: the caller must hold a lock.
class FreeBuffers {
 public:
  // Removes and returns the smallest buffer of at least `nbytes`, but none of the `resting` buffers that were added
  // last.
  std::optional<at::Tensor> take(int64_t nbytes, size_t resting = 0);
  // Removes and returns the largest buffer. If no buffer fits a request, the caller frees this one before it allocates,
  // so that not both are kept.
  std::optional<at::Tensor> take_largest();
  void add(at::Tensor bytes) { free_.push_back(std::move(bytes)); }

 private:
  std::deque<at::Tensor> free_;  // the oldest first
};

}  // namespace fsdp::base
