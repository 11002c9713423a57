#include "torch_seams/graph_roots.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

namespace fsdp::seams {

torch::autograd::Edge graph_root(const at::Tensor& tensor) { return torch::autograd::impl::gradient_edge(tensor); }

at::Tensor transposed_leaf(const at::Tensor& matrix) {
  const auto& transpose = matrix.grad_fn();
  if (!transpose || transpose->name() != "TBackward0") return {};
  const auto* leaf = dynamic_cast<const torch::autograd::AccumulateGrad*>(transpose->next_edge(0).function.get());
  return leaf ? leaf->variable : at::Tensor();
}

void run_backward(const std::vector<torch::autograd::Edge>& roots, const std::vector<at::Tensor>& gradients) {
  torch::autograd::Engine::get_default_engine().execute(roots, gradients, /*keep_graph=*/false, /*create_graph=*/false,
                                                        /*accumulate_grad=*/true);
}

}  // namespace fsdp::seams
