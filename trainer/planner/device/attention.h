// Which attention a GPU would run.
#pragma once

namespace fsdp::planner {

// Makes scaled_dot_product_attention on the planned device choose as LibTorch does on CUDA. Where it would run flash
// attention, the operator for CPUs stands in: it keeps the same tensors for backward. Must be called once.
void register_attention();

}  // namespace fsdp::planner
