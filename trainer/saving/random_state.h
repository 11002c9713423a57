// The state of a rank's random numbers, as tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <map>
#include <string>

namespace fsdp::trainer {

// Of LibTorch's default generators of the host and of `device`.
std::map<std::string, at::Tensor> random_state(c10::Device device);

// The other way round. Those that `state` has none for stay as they are.
void set_random_state(const std::map<std::string, at::Tensor>& state, c10::Device device);

}  // namespace fsdp::trainer
