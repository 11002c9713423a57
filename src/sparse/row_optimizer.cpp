#include "sparse/row_optimizer.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <utility>

namespace fsdp::sparse {
namespace {

void check_learning_rate(double learning_rate) {
  TORCH_CHECK(learning_rate >= 0, "row optimizer: a learning rate of ", learning_rate, " is negative or not a number");
}

at::ScalarType arithmetic_dtype(const at::Tensor& rows) {
  return rows.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

}  // namespace

RowOptimizer::RowOptimizer(std::shared_ptr<SplitEmbedding> embedding, const RowOptimizerOptions& options)
    : embedding_(std::move(embedding)), options_(options) {
  TORCH_CHECK(embedding_, "row optimizer: there is no embedding");
  check_learning_rate(options_.learning_rate);
  TORCH_CHECK(options_.eps >= 0, "row optimizer: an eps of ", options_.eps, " is negative or not a number");
  if (options_.rule == RowRule::kSgd) return;
  const at::Tensor& rows = embedding_->weight();
  squares_ = at::zeros({rows.size(0)}, rows.options().dtype(arithmetic_dtype(rows)).requires_grad(false));
}

void RowOptimizer::set_learning_rate(double learning_rate) {
  check_learning_rate(learning_rate);
  options_.learning_rate = learning_rate;
}

void RowOptimizer::step(double gradient_scale) {
  const SparseRows& gradient = embedding_->gradient();
  if (!gradient.defined()) return;
  const at::NoGradGuard no_grad;
  at::Tensor rows = embedding_->weight().detach();
  at::Tensor change = gradient.values.to(arithmetic_dtype(rows)) * gradient_scale;
  if (options_.rule == RowRule::kRowWiseAdagrad) {
    const at::Tensor squares = squares_.index_select(0, gradient.rows) + change.square().mean(1);
    squares_.index_copy_(0, gradient.rows, squares);
    change = change / (squares.sqrt() + options_.eps).unsqueeze(1);
  }
  const at::Tensor updated =
      rows.index_select(0, gradient.rows).to(change.scalar_type()) - change * options_.learning_rate;
  rows.index_copy_(0, gradient.rows, updated.to(rows.scalar_type()));
}

}  // namespace fsdp::sparse
