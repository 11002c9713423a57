// The dispatch key of tensors that were computed from parameters alone, such as a weight that a module scales.
//
// TESTING_ONLY_GenericWrapper is declared by c10 for its tests, has a higher priority than the sharded key, and has no
// fallback in LibTorch. Views of a tensor inherit it.
#pragma once

#include <ATen/core/TensorBase.h>
#include <c10/core/DispatchKeySet.h>

namespace fsdp::seams {

inline constexpr c10::DispatchKey kDerivedKey = c10::DispatchKey::TESTING_ONLY_GenericWrapper;

inline bool has_derived_key(const at::TensorBase& tensor) {
  return tensor.defined() && tensor.key_set().has(kDerivedKey);
}

void add_derived_key(const at::TensorBase& tensor);

}  // namespace fsdp::seams
