// Gradients of a few rows.
#pragma once

#include <ATen/core/Tensor.h>

namespace fsdp::sparse {

// Values of some rows of a matrix: rows ascending and each once. Undefined tensors: no row.
struct SparseRows {
  at::Tensor rows;    // int64 [n]
  at::Tensor values;  // [n, width]

  bool defined() const { return rows.defined(); }
};

// [count, width]: in row i the sum of those rows of `values` [n, width] whose `places` [n] is i, added up in the order
// in which they come.
at::Tensor sum_by_place(const at::Tensor& values, const at::Tensor& places, int64_t count);

// `values` [n, width] belong to `rows` [n], in which a row may come several times: adds those of a row up in the order
// in which they come, so that the result depends on nothing else.
SparseRows sum_rows(const at::Tensor& rows, const at::Tensor& values);

// The sum; where both have a row, that of `first` is added first.
SparseRows add_rows(const SparseRows& first, const SparseRows& second);

}  // namespace fsdp::sparse
