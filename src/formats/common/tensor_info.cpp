#include "formats/common/tensor_info.h"

#include <algorithm>

namespace fsdp::formats {

std::optional<int64_t> countable_nbytes(c10::ScalarType dtype, const std::vector<int64_t>& shape) {
  auto bytes = static_cast<int64_t>(c10::elementSize(dtype));
  bool empty = false;
  for (int64_t size : shape) {
    empty = empty || size == 0;
    if (__builtin_mul_overflow(bytes, std::max<int64_t>(size, 1), &bytes)) return std::nullopt;
  }
  return empty ? 0 : bytes;
}

int64_t TensorInfo::numel() const {
  int64_t count = 1;
  for (int64_t size : shape) count *= size;
  return count;
}

int64_t TensorInfo::nbytes() const { return numel() * static_cast<int64_t>(c10::elementSize(dtype)); }

std::vector<std::vector<TensorInfo>> split_into_files(const std::vector<TensorInfo>& tensors, int64_t max_bytes) {
  std::vector<std::vector<TensorInfo>> files(1);
  int64_t bytes = 0;
  for (const TensorInfo& tensor : tensors) {
    if (!files.back().empty() && bytes + tensor.nbytes() > max_bytes) {
      files.emplace_back();
      bytes = 0;
    }
    files.back().push_back(tensor);
    bytes += tensor.nbytes();
  }
  return files;
}

}  // namespace fsdp::formats
