// Optimizers of split embedding tables: each rank updates the rows that it holds and that a batch has looked up.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "sparse/row_rule.h"
#include "sparse/split_embedding.h"

namespace fsdp::sparse {

struct RowOptimizerOptions {
  RowRule rule = RowRule::kRowWiseAdagrad;
  double learning_rate = 0.01;  // not negative
  double eps = 1e-8;            // not negative; for Adagrad only
};

// Rows without a gradient and their state stay unchanged. The result equals that of a dense optimizer with the same
// rule, for which a gradient of zeros changes nothing either. Not collective.
class RowOptimizer {
 public:
  RowOptimizer(std::shared_ptr<SplitEmbedding> embedding, const RowOptimizerOptions& options);

  // Applies gradient_scale times embedding.gradient(), and keeps that gradient. Does nothing without a gradient. The
  // arithmetic is fp32 (fp64 for fp64 rows).
  void step(double gradient_scale = 1.0);
  // Clears the gradient; call it between steps.
  void zero_grad() { embedding_->clear_gradient(); }

  double learning_rate() const { return options_.learning_rate; }
  void set_learning_rate(double learning_rate);
  // The value s of each row that this rank holds [n]; undefined for SGD. SplitEmbedding::pieces_of names its parts.
  const at::Tensor& squares() const { return squares_; }

 private:
  std::shared_ptr<SplitEmbedding> embedding_;
  RowOptimizerOptions options_;
  at::Tensor squares_;
};

}  // namespace fsdp::sparse
