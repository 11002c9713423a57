#include "checkpoint/tensor_info.h"

namespace fsdp::checkpoint {

int64_t TensorInfo::numel() const {
  int64_t count = 1;
  for (int64_t size : shape) {
    count *= size;
  }
  return count;
}

int64_t TensorInfo::nbytes() const { return numel() * static_cast<int64_t>(c10::elementSize(dtype)); }

}  // namespace fsdp::checkpoint
