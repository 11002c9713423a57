// What is known of a stored tensor without reading it.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace fsdp::checkpoint {

constexpr size_t kMaxTensorRank = 64;

// How many bytes a tensor of this shape takes, whose sizes are not negative. Unset when that is more than 2^63-1, or
// would be if its sizes of 0 were 1: strides are computed from that product.
std::optional<int64_t> countable_nbytes(c10::ScalarType dtype, const std::vector<int64_t>& shape);

struct TensorInfo {
  std::string name;
  c10::ScalarType dtype = c10::ScalarType::Float;
  std::vector<int64_t> shape;  // empty: a scalar

  int64_t numel() const;
  int64_t nbytes() const;
};

// Cuts a list of tensors, in its order, into files of at most `max_bytes`; a larger tensor gets one of its own. One
// list, perhaps empty, at least.
std::vector<std::vector<TensorInfo>> split_into_files(const std::vector<TensorInfo>& tensors, int64_t max_bytes);

}  // namespace fsdp::checkpoint
