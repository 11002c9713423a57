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

// A tensor without values, deferred or on the meta device, gets uninitialised memory on its device (`device` for meta
// tensors) in place of what was recorded.
void replace_by_memory(const at::Tensor& tensor, c10::Device device);

// Whether it is deferred or on the meta device.
bool has_no_values(const at::Tensor& tensor);

// Generators whose recorded draws have all been made go where construction would have left them.
void settle_generators();

}  // namespace fsdp::deferred
