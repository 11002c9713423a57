#include "sparse/sparse_rows.h"

#include <ATen/ops/_unique2.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/embedding_dense_backward.h>
#include <ATen/ops/empty.h>

namespace fsdp::sparse {

at::Tensor sum_by_place(const at::Tensor& values, const at::Tensor& places, int64_t count) {
  if (count == 0) return at::empty({0, values.size(1)}, values.options());
  return at::embedding_dense_backward(values, places, count, /*padding_idx=*/-1, /*scale_grad_by_freq=*/false);
}

SparseRows sum_rows(const at::Tensor& rows, const at::Tensor& values) {
  auto [unique, place, counts] = at::_unique2(rows, /*sorted=*/true, /*return_inverse=*/true);
  return {unique, sum_by_place(values, place, unique.numel())};
}

SparseRows add_rows(const SparseRows& first, const SparseRows& second) {
  if (!first.defined()) return second;
  if (!second.defined()) return first;
  return sum_rows(at::cat({first.rows, second.rows}), at::cat({first.values, second.values}));
}

}  // namespace fsdp::sparse
