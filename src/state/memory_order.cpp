#include "state/memory_order.h"

#include <ATen/ops/empty_strided.h>
#include <c10/util/strides.h>

namespace fsdp::state {

namespace {

std::vector<int64_t> full_strides(at::IntArrayRef sizes, const std::vector<int64_t>& stored) {
  const c10::DimVector plain = c10::contiguous_strides(sizes);
  return stored.empty() ? std::vector<int64_t>(plain.begin(), plain.end()) : stored;
}

}  // namespace

std::vector<int64_t> stored_strides(at::IntArrayRef sizes, at::IntArrayRef strides) {
  const c10::DimVector plain = c10::contiguous_strides(sizes);
  for (size_t i = 0; i < plain.size(); ++i) {
    if (sizes[i] != 1 && strides[i] != plain[i]) return strides.vec();
  }
  return {};
}

OrderedElements elements_of(const at::Tensor& tensor) {
  const at::Tensor value = tensor.detach();
  if (!value.is_non_overlapping_and_dense()) return {value.contiguous().view(-1), {}};
  return {value.as_strided({value.numel()}, {1}), stored_strides(value.sizes(), value.strides())};
}

at::Tensor tensor_of(const at::Tensor& values, at::IntArrayRef sizes, const std::vector<int64_t>& strides) {
  return values.as_strided(sizes, full_strides(sizes, strides), values.storage_offset());
}

at::Tensor reordered(const at::Tensor& values, at::IntArrayRef sizes, const std::vector<int64_t>& from,
                     const std::vector<int64_t>& to) {
  const at::Tensor result = at::empty_strided(sizes, full_strides(sizes, to), values.options());
  result.copy_(tensor_of(values, sizes, from));
  return result.as_strided({values.numel()}, {1});
}

}  // namespace fsdp::state
