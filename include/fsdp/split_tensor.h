// Tensors whose rows are split over ranks by other code than FSDP, such as embedding tables, as checkpoints describe
// them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace fsdp {

// The rows of one such tensor on this rank. All ranks describe the same tensors, even tensors of which they hold no
// row. Each row is held by exactly one rank.
struct SplitTensor {
  std::string name;  // like an FQN, "embedding.table.3"; not the name of a parameter or buffer
  // Empty: `rows` are rows of the tensor itself. Otherwise the name of optimizer state for it ("squares"), without a
  // slash; `rows` are rows of that state.
  std::string state;
  std::vector<int64_t> sizes;  // of the whole tensor; at least one
  int64_t begin = 0;           // this rank holds rows [begin, begin + rows.size(0)), perhaps none
  at::Tensor rows;             // contiguous, on any device; saving reads it, loading writes to it
};

}  // namespace fsdp
