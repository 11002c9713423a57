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

}  // namespace fsdp
