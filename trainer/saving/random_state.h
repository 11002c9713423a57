// The state of a rank's random number generators, as tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <map>
#include <string>

namespace fsdp::trainer {

// Returns the states of LibTorch's default generators of the CPU and of `device`.
std::map<std::string, at::Tensor> random_state(c10::Device device);

// Sets the states of these generators. Generators that `state` does not contain keep their state.
void set_random_state(const std::map<std::string, at::Tensor>& state, c10::Device device);

}  // namespace fsdp::trainer
