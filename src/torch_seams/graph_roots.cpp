#include "torch_seams/graph_roots.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/variable.h>

namespace fsdp::seams {

torch::autograd::Edge graph_root(const at::Tensor& tensor) { return torch::autograd::impl::gradient_edge(tensor); }

void run_backward(const std::vector<torch::autograd::Edge>& roots, const std::vector<at::Tensor>& gradients) {
  torch::autograd::Engine::get_default_engine().execute(roots, gradients, /*keep_graph=*/false, /*create_graph=*/false,
                                                        /*accumulate_grad=*/true);
}

}  // namespace fsdp::seams
