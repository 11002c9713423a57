// What can be sharded at all.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace fsdp {

// Throws, naming the FQN, unless `tensor` is a dense, strided leaf with real elements and memory of its own kind, has
// no gradient yet and is in no unit.
void check_shardable(const at::Tensor& tensor, const std::string& fqn);

}  // namespace fsdp
