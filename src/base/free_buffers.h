// Memory that waits to be used again.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <optional>

namespace fsdp {

// kByte tensors, each the whole of its memory. Threads: the caller's lock.
class FreeBuffers {
 public:
  // Takes out the smallest of at least `nbytes`, the `resting` ones added last left alone.
  std::optional<at::Tensor> take(int64_t nbytes, size_t resting = 0);
  // Takes out the largest. Where nothing fits, it makes room for what is allocated then, so that not both are kept.
  std::optional<at::Tensor> take_largest();
  void add(at::Tensor bytes) { free_.push_back(std::move(bytes)); }

 private:
  std::deque<at::Tensor> free_;  // the oldest first
};

}  // namespace fsdp
