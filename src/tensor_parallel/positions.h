// The layout in which parts of a sequence travel between ranks: one block of memory for each rank.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace fsdp::tensor_parallel {

// Returns the values by rank: the positions along `dim`, cut into `ranks` equal parts, of which the first is rank 0's.
// [ranks, …], contiguous; a view where memory has that order already. `ranks` must divide the positions.
at::Tensor by_rank(const at::Tensor& whole, int64_t dim, int64_t ranks);

// The inverse: returns all positions along `dim`, from [ranks, …].
at::Tensor from_ranks(const at::Tensor& all, int64_t dim);

}  // namespace fsdp::tensor_parallel
