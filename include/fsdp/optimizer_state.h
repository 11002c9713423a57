// An optimizer's state by name, for checkpoints: what is kept for each leaf, and the options of each parameter group.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace torch::optim {
class Optimizer;
}

namespace fsdp {

// Names are those of torch.optim in Python: step, exp_avg, exp_avg_sq, max_exp_avg_sq, momentum_buffer, sum,
// square_avg, grad_avg.
struct LeafState {
  std::map<std::string, at::Tensor> tensors;  // each of the leaf's shape
  std::map<std::string, double> scalars;
};

// Derive from it to make checkpoints of an optimizer of your own. Threads: those of the optimizer.
class OptimizerState {
 public:
  virtual ~OptimizerState() = default;

  // The leaves that the optimizer was built on, by parameter group.
  virtual std::vector<std::vector<at::Tensor>> groups() const = 0;

  // The tensors are the optimizer's own. None: the leaf had no gradient so far, or is not one of the optimizer's.
  virtual std::optional<LeafState> leaf(const at::Tensor& leaf) const = 0;
  // Takes the tensors over. Names that are missing, or that this optimizer does not have, tensors of another shape than
  // the leaf's, and those of a dtype that it does not keep for the leaf are errors; so is a leaf that is not the
  // optimizer's.
  virtual void set_leaf(const at::Tensor& leaf, const std::optional<LeafState>& state) = 0;
  // Throws what set_leaf would, and changes nothing: loading asks before it begins. Values of tensors, which may be
  // expanded from one element, are not looked at. By default all is accepted here.
  virtual void check_leaf(const at::Tensor& /*leaf*/, const LeafState& /*state*/) const {}

  // "lr", "beta1", "weight_decay", … as numbers; truth values are 0 and 1. Of Adam and AdamW, which are told apart by
  // it as in torch.optim, "decoupled_weight_decay" is one, 0 or 1. A group that is not there is an error.
  virtual std::map<std::string, double> options(size_t group) const = 0;
  // All of them; names that are missing or unknown are errors, and so are values that this optimizer cannot have.
  virtual void set_options(size_t group, const std::map<std::string, double>& options) = 0;
  // Throws what set_options would, and changes nothing. By default all is accepted here.
  virtual void check_options(size_t /*group*/, const std::map<std::string, double>& /*options*/) const {}
};

// Of Adam, AdamW, SGD, Adagrad and RMSprop of torch::optim; others are an error that says so. `optimizer` must outlive
// what is returned.
std::unique_ptr<OptimizerState> state_of(torch::optim::Optimizer& optimizer);

}  // namespace fsdp
