// Gradients of a subset of rows.
#pragma once

#include <ATen/core/Tensor.h>

namespace fsdp::sparse {

// Values of some rows of a matrix: rows are ascending, each at most once. Undefined tensors mean no rows.
struct SparseRows {
  at::Tensor rows;    // int64 [n]
  at::Tensor values;  // [n, width]

  bool defined() const { return rows.defined(); }
};

// Returns [count, width]: row i is the sum of the rows of `values` [n, width] whose `places` [n] is i, added in the
// order in which they occur.
at::Tensor sum_by_place(const at::Tensor& values, const at::Tensor& places, int64_t count);

// Sums `values` [n, width] by their `rows` [n], in which a row may occur several times. The values of a row are added
// in the order in which they occur, so that the result depends on nothing else.
SparseRows sum_rows(const at::Tensor& rows, const at::Tensor& values);

// Returns the sum. If both have a row, the values of `first` come first in the addition.
SparseRows add_rows(const SparseRows& first, const SparseRows& second);

}  // namespace fsdp::sparse
