// Gradients of weights that are computed apart from those of the inputs, as zero-bubble schedules ask (Qi et al., 2023,
// "Zero Bubble Pipeline Parallelism").
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>

#include <memory>
#include <vector>

#include "base/mutex.h"
#include "torch_seams/operator_interception.h"

namespace fsdp::pipeline {

// The matrix products of one micro-batch that are left for its pass for weight gradients.
//
// While operators are recorded through it, a product of an input with a weight, or with its transpose (linear, addmm,
// mm, matmul), gets a node of its own in the graph. In backward, the node computes the gradient of the input and keeps
// both factors of the gradient of the weight: the input, and the gradient of the output. The graph is then done with,
// and the weight need not be gathered any more. All other operators, and weights that are no leaves, are recorded as
// ever, and their gradients computed in backward.
//
// Results are equal to those of an ordinary backward to the bit: the same products of the same operands, added up in
// the same order. (Except for a weight that several recomputed parts of a micro-batch use: backward adds up the
// gradient of each part alone.)
class WeightGradients : public seams::OperatorInterceptor, public std::enable_shared_from_this<WeightGradients> {
 public:
  // gradient of the weight = left^T right.
  struct Product {
    torch::autograd::Edge weight;  // where its gradient is accumulated
    at::Tensor left, right;        // matrices
  };

  // While it lives, operators of this thread are recorded through `gradients`.
  class Recording {
   public:
    explicit Recording(WeightGradients& gradients) : guard_(gradients, seams::InterceptionLevel::kAboveAutograd) {}

   private:
    seams::InterceptionGuard guard_;
  };

  void intercept(const c10::OperatorHandle& op, torch::jit::Stack& stack, c10::function_ref<void()> run) override;

  // Called in backward. Threads: safe.
  void add(Product product) FSDP_EXCLUDES(mutex_);
  // The number of products that are left.
  size_t size() const FSDP_EXCLUDES(mutex_);
  // Computes the gradients one after the other and accumulates them: a backward pass of its own. Forgets the products.
  void accumulate() FSDP_EXCLUDES(mutex_);

 private:
  mutable base::Mutex mutex_;
  std::vector<Product> products_ FSDP_GUARDED_BY(mutex_);  // in the order of backward
};

}  // namespace fsdp::pipeline
