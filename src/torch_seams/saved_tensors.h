// What autograd saves for backward.
#pragma once

#include <ATen/core/Tensor.h>

namespace fsdp::seams {

// Lets go of what the nodes that made the tensor, or the tensor of which it is a view, have saved for backward. The
// tensor still requires a gradient as it did, but a backward through it fails.
void drop_saved_tensors(const at::Tensor& tensor);

}  // namespace fsdp::seams
