// The tensors of a module that are not sharded.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <string>
#include <utility>
#include <vector>

#include "fsdp/fully_shard.h"

namespace fsdp::state {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

NamedTensors named_buffers(const torch::nn::Module& module);
// The parameters that are not sharded. Throws if `module` is not the module that `model` was made from.
NamedTensors ignored_parameters(const ShardedModule& model, const torch::nn::Module& module);
// The buffers and the parameters that are not sharded.
NamedTensors unsharded_tensors(const ShardedModule& model, const torch::nn::Module& module);

// A tensor with all of its names; it has several if modules share it.
struct SharedTensor {
  std::vector<std::string> names;
  at::Tensor value;
};
// Returns each tensor once, in the order of first names.
std::vector<SharedTensor> by_tensor(const NamedTensors& tensors);

}  // namespace fsdp::state
