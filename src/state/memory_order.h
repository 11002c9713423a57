// The order in which a tensor's elements lie in memory: row-major, or as given by its strides.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace fsdp::state {

// Returns the strides in their stored form: empty if the elements lie row-major. Strides of dimensions of size 1 are
// ignored.
std::vector<int64_t> stored_strides(at::IntArrayRef sizes, at::IntArrayRef strides);

// All elements of a tensor, 1-D. If the tensor is dense, a view in the order of its memory, else a row-major copy.
struct OrderedElements {
  at::Tensor values;
  std::vector<int64_t> strides;  // the order of `values`, as returned by stored_strides
};
OrderedElements elements_of(const at::Tensor& tensor);

// Returns the tensor of these sizes whose elements, 1-D in the order `strides` (stored strides), are `values`: a view.
at::Tensor tensor_of(const at::Tensor& values, at::IntArrayRef sizes, const std::vector<int64_t>& strides);

// Returns all elements of a tensor whose memory order is `from`, in the order `to` (both are stored strides).
at::Tensor reordered(const at::Tensor& values, at::IntArrayRef sizes, const std::vector<int64_t>& from,
                     const std::vector<int64_t>& to);

}  // namespace fsdp::state
