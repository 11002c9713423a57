// What a module has beside its sharded parameters.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <string>
#include <utility>
#include <vector>

#include "fsdp/fully_shard.h"

namespace fsdp {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

NamedTensors named_buffers(const torch::nn::Module& module);
// An error when `module` is not the one that `model` was made of.
NamedTensors ignored_parameters(const ShardedModule& model, const torch::nn::Module& module);
// Both.
NamedTensors unsharded_tensors(const ShardedModule& model, const torch::nn::Module& module);

// A tensor with all of its names: several where modules share it.
struct SharedTensor {
  std::vector<std::string> names;
  at::Tensor value;
};
// Each tensor once, in the order of first names.
std::vector<SharedTensor> by_tensor(const NamedTensors& tensors);

}  // namespace fsdp
