// Tensors whose rows are split over ranks by others than FSDP, such as embedding tables: what checkpoints know of them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace fsdp {

// What this rank holds of one of them. All ranks describe the same tensors, also those of which they hold no row, and
// each row is held by one rank.
struct SplitTensor {
  std::string name;  // as an FQN, "embedding.table.3"; no parameter or buffer has it
  // Empty: these are rows of the tensor. Otherwise they are state that an optimizer keeps for it, "squares"; without a
  // slash.
  std::string state;
  std::vector<int64_t> sizes;  // of the whole; one at least
  int64_t begin = 0;           // this rank holds rows [begin, begin + rows.size(0)), perhaps none
  at::Tensor rows;             // contiguous, on any device; saving reads it, loading writes to it
};

}  // namespace fsdp
