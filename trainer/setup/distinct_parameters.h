// The parameters of a module, of which several of its modules may share one.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace torch::nn {
class Module;
}

namespace fsdp::trainer {

// Returns each parameter once, in the order of parameters(): LibTorch lists a shared one under each of its names.
std::vector<at::Tensor> distinct_parameters(const torch::nn::Module& module);

// Returns the elements of all of them.
int64_t parameter_count(const torch::nn::Module& module);

}  // namespace fsdp::trainer
