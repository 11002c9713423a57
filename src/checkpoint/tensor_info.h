// What is known of a stored tensor without reading it.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>
#include <vector>

namespace fsdp::checkpoint {

struct TensorInfo {
  std::string name;
  c10::ScalarType dtype = c10::ScalarType::Float;
  std::vector<int64_t> shape;  // empty: a scalar

  int64_t numel() const;
  int64_t nbytes() const;
};

}  // namespace fsdp::checkpoint
