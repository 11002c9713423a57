// Shapes of results for operators that LibTorch has no kernel for on the meta device.
#pragma once

#include <ATen/core/operator_name.h>
#include <ATen/core/stack.h>

namespace fsdp::planner {

// Takes the arguments and returns the results, all on the meta device.
using ShapeFunction = torch::jit::Stack (*)(const torch::jit::Stack& arguments);

// Returns null if the table does not contain the operator.
ShapeFunction find_shape_function(const c10::OperatorName& operation);

}  // namespace fsdp::planner
