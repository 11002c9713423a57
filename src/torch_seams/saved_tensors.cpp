#include "torch_seams/saved_tensors.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

namespace fsdp::seams {
namespace {

// Reads the field directly: for a view whose base was written to, Tensor::grad_fn() would create a new node.
void discard_in_node_of(const at::TensorBase& tensor) {
  const auto* meta = torch::autograd::impl::get_autograd_meta(tensor);
  if (meta && meta->grad_fn_) meta->grad_fn_->release_variables();
}

}  // namespace

void discard_saved_tensors(const at::Tensor& tensor) {
  discard_in_node_of(tensor);
  if (tensor.is_view()) discard_in_node_of(tensor._base());
}

}  // namespace fsdp::seams
