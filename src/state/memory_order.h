// The order in which a tensor's elements lie in memory: row-major, or as its strides say.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace fsdp {

// Strides as they are stored: empty where elements lie row-major. Those of dimensions of size 1 say nothing.
std::vector<int64_t> stored_strides(at::IntArrayRef sizes, at::IntArrayRef strides);

// All elements of a dense tensor, 1-D, in their order: a view of it. Of another tensor: a row-major copy.
struct OrderedElements {
  at::Tensor values;
  std::vector<int64_t> strides;  // stored_strides of the tensor that lies so
};
OrderedElements elements_of(const at::Tensor& tensor);

// All elements of a tensor that lies as `from` says (stored strides), in the order that `to` says.
at::Tensor reordered(const at::Tensor& values, at::IntArrayRef sizes, const std::vector<int64_t>& from,
                     const std::vector<int64_t>& to);

}  // namespace fsdp
