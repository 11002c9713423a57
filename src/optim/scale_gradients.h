// Scales the gradients of leaves.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace fsdp::optim {

// Multiplies those that are defined. Does nothing if the factor is 1.
inline void scale_gradients(const std::vector<at::Tensor>& leaves, double factor) {
  if (factor == 1.0) return;
  for (const at::Tensor& leaf : leaves) {
    if (leaf.grad().defined()) leaf.mutable_grad().mul_(factor);
  }
}

}  // namespace fsdp::optim
