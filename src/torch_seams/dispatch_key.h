// The dispatch key that sharded parameters carry.
//
// DeferredInit is reserved by c10 for out-of-core libraries and has a higher priority than autograd, so a fallback on
// it sees every operator on a keyed tensor, in forward and in backward. Views inherit the key, and set_data carries it
// over.
#pragma once

#include <ATen/core/TensorBase.h>
#include <c10/core/DispatchKeySet.h>

namespace fsdp::seams {

inline constexpr c10::DispatchKey kShardedKey = c10::DispatchKey::DeferredInit;

inline bool has_sharded_key(const at::TensorBase& tensor) {
  return tensor.defined() && tensor.key_set().has(kShardedKey);
}

}  // namespace fsdp::seams
