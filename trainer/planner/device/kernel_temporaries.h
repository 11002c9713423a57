// The memory that CUDA's kernels take beside their results.
#pragma once

#include <ATen/core/stack.h>

#include <cstdint>
#include <string>
#include <vector>

namespace fsdp::planner {

// Returns the bytes of each temporary that the operator named `name` ("aten::mm") allocates for this call on an NVIDIA
// A100 or newer, at the moment at which they are largest together. The figures are those of LibTorch 2.13, but for
// convolutions and batch norm, which are modelled. Empty if the operator takes none, or is unknown here.
std::vector<int64_t> kernel_temporaries(const std::string& name, const torch::jit::Stack& arguments);

// Whether cuBLAS computes the operator.
bool runs_on_cublas(const std::string& name);

}  // namespace fsdp::planner
