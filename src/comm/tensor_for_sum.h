// The memory of reductions on devices.
#pragma once

#include <ATen/core/Tensor.h>

namespace fsdp::comm {

// Returns the tensor in which NCCL adds up this rank's part of a reduce-scatter: `output`, or, because NCCL adds in the
// dtype of the contributions, a new tensor if that is another one. It belongs to the current stream.
at::Tensor tensor_for_sum(const at::Tensor& output, const at::Tensor& input);

}  // namespace fsdp::comm
