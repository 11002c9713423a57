// Computes the values of deferred tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace fsdp::deferred {

// Returns the values of deferred tensors, each in a tensor of the same shape, dtype and device. The tensors themselves
// stay deferred. Ordinary tensors are returned as they are.
std::vector<at::Tensor> values_of(const std::vector<at::Tensor>& tensors);

// Turns deferred tensors into ordinary ones with memory and values.
void replace_by_values(const std::vector<at::Tensor>& tensors);

// Gives a tensor without values (deferred, or on the meta device) uninitialised memory on its device (on `device` for a
// meta tensor) instead of its recorded value.
void replace_by_memory(const at::Tensor& tensor, c10::Device device);

// Whether the tensor is deferred or on the meta device.
bool has_no_values(const at::Tensor& tensor);

// Moves generators whose recorded draws have all been made to the state in which construction would have left them.
void settle_generators();

}  // namespace fsdp::deferred
