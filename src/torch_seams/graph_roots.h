// Backward passes that begin at places of a graph whose tensors are gone.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>

#include <vector>

namespace fsdp::seams {

// Returns the place of a graph at which the tensor's gradient enters. The tensor must require gradients. It keeps the
// graph alive, but not the tensor's memory.
torch::autograd::Edge graph_root(const at::Tensor& tensor);

// Runs backward from these roots with their gradients, and accumulates into leaves.
void run_backward(const std::vector<torch::autograd::Edge>& roots, const std::vector<at::Tensor>& gradients);

}  // namespace fsdp::seams
