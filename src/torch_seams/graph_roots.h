// Places of autograd's graph: backward passes that begin where tensors are gone, and leaves of which there are views.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>

#include <vector>

namespace fsdp::seams {

// Returns the place of a graph at which the tensor's gradient enters. The tensor must require gradients. It keeps the
// graph alive, but not the tensor's memory.
torch::autograd::Edge graph_root(const at::Tensor& tensor);

// Returns the leaf whose transpose, by t(), a matrix is; an undefined tensor if it is none.
at::Tensor transposed_leaf(const at::Tensor& matrix);

// Runs backward from these roots with their gradients, and accumulates into leaves.
void run_backward(const std::vector<torch::autograd::Edge>& roots, const std::vector<at::Tensor>& gradients);

}  // namespace fsdp::seams
