// A graph that autograd records, but through which no backward pass runs.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/intrusive_ptr.h>

#include <vector>

namespace fsdp::recompute {

// [Note: the first run with kept results]
// LibTorch decomposes operators depending on which tensors require gradients and on whether gradients are enabled:
// matmul folds its batch if the smaller factor requires a gradient, and attention chooses another kernel or returns
// more results. A kept result is valid in recomputation only if both runs decompose alike. So the first run of a region
// that keeps results has gradients enabled, and inputs that require them, like recomputation. Its graph is not used and
// must not hold activations: the tensors that its nodes save are discarded when the next operator is called.
class TransientGraph {
 public:
  TransientGraph();
  ~TransientGraph();
  TransientGraph(const TransientGraph&) = delete;
  TransientGraph& operator=(const TransientGraph&) = delete;

  // Call these below autograd: the first before each operator, the second after it, with its results on the stack.
  void discard_saved_tensors();
  void note_results(const c10::OperatorHandle& op, const torch::jit::Stack& stack);

  // Whether this thread records such a graph.
  static bool is_recorded();

 private:
  using WeakTensor = c10::weak_intrusive_ptr<at::TensorImpl, at::UndefinedTensorImpl>;

  std::vector<WeakTensor> latest_;  // results since they were last discarded
};

}  // namespace fsdp::recompute
