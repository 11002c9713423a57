// Casts between the dtypes of activations and of the parameters that they meet: at operators, where PyTorch's FSDP does
// it in hooks on modules.
#pragma once

#include <ATen/core/stack.h>

#include <optional>

#include "dispatch/operator_info.h"

namespace fsdp {

// For an operator whose units want inputs cast and that is about to be called with `stack`: casts what its rule says,
// in place of the arguments, as operators that autograd sees. Returns the dtype that floating-point results must be
// cast back to, if any. `parameter`: the dtype of the sharded parameters among the arguments.
std::optional<at::ScalarType> cast_inputs(const OperatorInfo& info, at::ScalarType parameter, torch::jit::Stack& stack);

// Casts floating-point tensors among the topmost `count` values.
void cast_results(torch::jit::Stack& stack, size_t count, at::ScalarType dtype);

}  // namespace fsdp
