// The memory that the CPU's kernels take beside their results.
#pragma once

#include <ATen/core/stack.h>

#include <cstdint>
#include <string>

namespace fsdp::planner {

// Returns the bytes that the operator named `name` ("aten::mm") takes in addition to its results, when it takes most,
// with at::get_num_threads() threads. 0 if the operator takes nothing, or is unknown here. LibTorch's own kernels take
// what LibTorch 2.13 takes. The memory of oneDNN (convolutions, products in bf16) is modelled after a processor with
// AVX-512: it depends on the processor.
int64_t host_temporaries(const std::string& name, const torch::jit::Stack& arguments);

}  // namespace fsdp::planner
