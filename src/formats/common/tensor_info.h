// The description of a stored tensor, known without reading its data.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace fsdp::formats {

constexpr size_t kMaxTensorRank = 64;

// Returns the bytes of a tensor of this shape, whose sizes must not be negative. Unset if that is more than 2^63-1, or
// would be if its sizes of 0 were 1, because strides are computed from that product.
std::optional<int64_t> countable_nbytes(c10::ScalarType dtype, const std::vector<int64_t>& shape);

struct TensorInfo {
  std::string name;
  c10::ScalarType dtype = c10::ScalarType::Float;
  std::vector<int64_t> shape;  // empty: a scalar

  int64_t numel() const;
  int64_t nbytes() const;
};

// Splits a list of tensors, in its order, into files of at most `max_bytes`; a larger tensor gets a file of its own.
// Returns at least one list, which may be empty.
std::vector<std::vector<TensorInfo>> split_into_files(const std::vector<TensorInfo>& tensors, int64_t max_bytes);

}  // namespace fsdp::formats
