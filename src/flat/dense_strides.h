// The strides of tensors of which one dimension is cut.
#pragma once

#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <vector>

namespace fsdp::flat {

// Returns dense strides with which dimension `dim` is the outermost, and the others follow in their order. With `dim` 0
// they are those of a contiguous tensor. Tensors without dimensions have none.
std::vector<int64_t> strides_with_outermost(c10::IntArrayRef sizes, int64_t dim);

}  // namespace fsdp::flat
