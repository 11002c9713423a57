// The shapes of an operator's results, without running it.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace fsdp::planner {

// Returns the results on the meta device: from the table of shapes if it has the operator, else from LibTorch's kernel
// for the meta device. Undefined tensors stand for results that are not made. `meta`: receives the arguments as they
// are after the call, because operators with `out` arguments resize them. Throws an error that names the operator if
// its shapes are unknown or depend on values.
torch::jit::Stack result_shapes(const c10::OperatorHandle& op, const torch::jit::Stack& arguments,
                                torch::jit::Stack& meta);

}  // namespace fsdp::planner
