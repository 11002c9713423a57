// Tensors that modules compute from parameters alone: a weight that is scaled or normalised, or merged with an adapter.
#pragma once

#include <ATen/core/stack.h>

#include <optional>

#include "dispatch/operator_info.h"

namespace fsdp::dispatch {

// [Note: tensors derived from parameters]
// With mixed precision a derived weight has the low dtype, and an activation that meets it in a product must be cast,
// as if it met a parameter. So the results of operators whose only inputs are low-precision parameters carry a key of
// their own. Operators on such tensors are seen: they cast their other arguments, as operators on parameters do, and
// pass the key on to results that are derived from parameters alone. Activations do not get the key, so only operators
// on derived tensors cost more than in plain LibTorch.

// Returns the low dtype of the parameters, or of the tensors derived from them, with which an operator is about to be
// called. Returns nullopt if the operator has no such inputs or other inputs as well (numbers and zero-dimensional
// tensors do not count), writes to an argument, or uses only the shape of its argument.
std::optional<at::ScalarType> derived_dtype(const OperatorInfo& info, const torch::jit::Stack& stack);

// Marks the topmost `count` values of the stack, the results of an operator for which derived_dtype() was `dtype`.
void mark_derived(const torch::jit::Stack& stack, size_t count, at::ScalarType dtype);

}  // namespace fsdp::dispatch
