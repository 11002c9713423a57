// Tensors that modules compute from parameters alone: a weight that is scaled or normalised, an adapter merged into it.
#pragma once

#include <ATen/core/stack.h>

#include <optional>

#include "dispatch/operator_info.h"

namespace fsdp {

// [Note: tensors derived from parameters]
// With mixed precision a derived weight has the low dtype, and an activation that meets it in a product has to be cast
// as one that meets a parameter has. So results of operators on parameters in low precision, and on nothing else, carry
// a key of their own: operators on them are seen, cast their other arguments as those on parameters do, and pass the
// key on to results that are derived from parameters alone. Activations do not get it, so that only operators on
// derived tensors cost more than in plain LibTorch.

// The low dtype of the parameters, or of tensors derived from them, that an operator is about to be called with, if it
// is called with nothing else (but numbers, and tensors without dimensions).
std::optional<at::ScalarType> derived_dtype(const OperatorInfo& info, const torch::jit::Stack& stack);

// The operator, for which derived_dtype() was `dtype`, has left its topmost `count` results.
void mark_derived(const torch::jit::Stack& stack, size_t count, at::ScalarType dtype);

}  // namespace fsdp
