// A pool of host memory for headers and for contributions that wait to be summed.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "base/free_buffers.h"

namespace fsdp::comm {

// Not thread-safe.
class StagingPool {
 public:
  // Returns at least `bytes` bytes of host memory (kByte, 1-D): the smallest free buffer that is large enough, or else
  // a new one.
  at::Tensor take(int64_t bytes);
  // Takes back a buffer from take(), once it is no longer read or written.
  void release(at::Tensor buffer);
  // Releases all free buffers except small ones, which headers use.
  void trim();

 private:
  base::FreeBuffers free_;
};

}  // namespace fsdp::comm
