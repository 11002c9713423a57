// The checks that autograd makes before an operator writes to one of its arguments.
#pragma once

#include <ATen/core/Tensor.h>

namespace fsdp::seams {

// Throws autograd's own error if gradient mode is on and an operator that records a graph may not write to `tensor`: if
// it is a leaf that requires a gradient, a view of one, or a view that autograd cannot rebase.
void check_write_in_graph(const at::Tensor& tensor);

// Returns the tensor that `tensor` is a differentiable view of, or the tensor itself.
at::Tensor base_in_graph(const at::Tensor& tensor);

}  // namespace fsdp::seams
