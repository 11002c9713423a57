#include "torch_seams/in_place_checks.h"

#include <torch/csrc/autograd/VariableTypeUtils.h>

namespace fsdp::seams {

void check_write_in_graph(const at::Tensor& tensor) { torch::autograd::check_inplace(tensor, /*requires_grad=*/true); }

at::Tensor base_in_graph(const at::Tensor& tensor) {
  const auto* meta = torch::autograd::impl::get_view_autograd_meta(tensor);
  return meta && meta->has_bw_view() ? meta->get_backward_view().base_ : tensor;
}

}  // namespace fsdp::seams
