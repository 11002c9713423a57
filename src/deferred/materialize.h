// Deferred tensors and their values.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace fsdp::deferred {

// The values of deferred tensors, each in a tensor of the same shape, dtype and device. The tensors themselves stay
// deferred. Ordinary tensors are returned as they are.
std::vector<at::Tensor> values_of(const std::vector<at::Tensor>& tensors);

// Turns deferred tensors into ordinary ones with memory and values.
void replace_by_values(const std::vector<at::Tensor>& tensors);

}  // namespace fsdp::deferred
