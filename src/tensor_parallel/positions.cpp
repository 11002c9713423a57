#include "tensor_parallel/positions.h"

namespace fsdp::tensor_parallel {

at::Tensor by_rank(const at::Tensor& whole, int64_t dim, int64_t ranks) {
  return whole.unflatten(dim, {ranks, whole.size(dim) / ranks}).movedim(dim, 0).contiguous();
}

at::Tensor from_ranks(const at::Tensor& all, int64_t dim) {
  return all.movedim(0, dim).flatten(dim, dim + 1).contiguous();
}

}  // namespace fsdp::tensor_parallel
