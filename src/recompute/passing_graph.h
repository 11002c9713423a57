// A graph that autograd records and nobody runs backward through.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/intrusive_ptr.h>

#include <vector>

namespace fsdp {

// [Note: the first run with kept results]
// LibTorch decomposes operators by what requires a gradient and by whether gradients are enabled: matmul folds its
// batch where a gradient of the smaller factor is required, attention takes another kernel or returns more results. A
// kept result serves recomputation only if both runs decompose alike. So the first run of a region that keeps results
// has gradients enabled, and inputs that require them, as recomputation has. Its graph is of no use and must not hold
// activations: what its nodes save is let go as soon as the next operator is called.
class PassingGraph {
 public:
  PassingGraph();
  ~PassingGraph();
  PassingGraph(const PassingGraph&) = delete;
  PassingGraph& operator=(const PassingGraph&) = delete;

  // Call below autograd: before each operator, and with its results on the stack.
  void drop_saved_tensors();
  void note_results(const c10::OperatorHandle& op, const torch::jit::Stack& stack);

  // Whether this thread records one.
  static bool is_recorded();

 private:
  using WeakTensor = c10::weak_intrusive_ptr<at::TensorImpl, at::UndefinedTensorImpl>;

  std::vector<WeakTensor> latest_;  // results since the last drop
};

}  // namespace fsdp
