// Tensors that autograd saves for backward.
#pragma once

#include <ATen/core/Tensor.h>

namespace fsdp::seams {

// Discards the tensors saved for backward by the node that produced `tensor` and, if `tensor` is a view, by the node
// that produced its base. The tensor still requires a gradient, but a backward pass through it fails.
void discard_saved_tensors(const at::Tensor& tensor);

}  // namespace fsdp::seams
