// Checks whether a parameter can be sharded at all.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace fsdp::flat {

// Throws an error that names the FQN unless `tensor` is a dense, strided leaf with real elements and memory of its own
// (no tensor subclass that wraps others), was not created in InferenceMode, has no gradient yet and is in no unit.
void check_shardable(const at::Tensor& tensor, const std::string& fqn);

}  // namespace fsdp::flat
