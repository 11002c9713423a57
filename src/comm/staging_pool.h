// Host memory for headers and for contributions that wait to be summed, used again and again.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "base/free_buffers.h"

namespace fsdp {

// Not thread-safe.
class StagingPool {
 public:
  // At least `bytes` bytes of host memory (kByte, 1-D). The smallest free buffer that is large enough, else a
  // new one.
  at::Tensor take(int64_t bytes);
  // Returns what take() gave, once nobody reads or writes it any more.
  void give_back(at::Tensor buffer);
  // Keeps none of the free buffers but small ones, for headers.
  void trim();

 private:
  FreeBuffers free_;
};

}  // namespace fsdp
