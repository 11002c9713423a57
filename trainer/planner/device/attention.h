// Which attention a GPU would run.
#pragma once

#include <string>
#include <vector>

namespace fsdp::planner {

// Makes scaled_dot_product_attention on the planned device choose as LibTorch does on CUDA. Where it would run flash
// attention, the operator for CPUs stands in: it keeps the same tensors for backward. Must be called once.
void register_attention();

// Translates the names of operators that run on CUDA into those that run on the planned device. Names of operators that
// do not run on CUDA are left out.
std::vector<std::string> planned_operators(const std::vector<std::string>& names);

}  // namespace fsdp::planner
