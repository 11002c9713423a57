// An optimizer's state by name, for checkpoints: the state of each leaf, and the options of each parameter group.
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

// Interface to an optimizer's state. Derive from it to save another optimizer in checkpoints. Threads: as the
// optimizer.
class OptimizerState {
 public:
  virtual ~OptimizerState() = default;

  // The leaves that the optimizer was built on, for each parameter group.
  virtual std::vector<std::vector<at::Tensor>> groups() const = 0;

  // The state of a leaf; the tensors are the optimizer's own. nullopt if the leaf had no gradient so far or does not
  // belong to the optimizer.
  virtual std::optional<LeafState> leaf(const at::Tensor& leaf) const = 0;
  // Sets the state of a leaf and takes over the tensors. Errors: missing names, names that this optimizer does not
  // have, tensors whose shape differs from the leaf's, tensors of a dtype that the optimizer does not keep for the
  // leaf, and a leaf that does not belong to the optimizer.
  virtual void set_leaf(const at::Tensor& leaf, const std::optional<LeafState>& state) = 0;
  // Throws the errors of set_leaf, but changes nothing: loading calls it before it begins. Does not read the values of
  // the tensors, which may be expanded from one element. Accepts everything by default.
  virtual void check_leaf(const at::Tensor& /*leaf*/, const LeafState& /*state*/) const {}

  // The options of a group as numbers: "lr", "beta1", "weight_decay", …; truth values are 0 and 1. Adam and AdamW have
  // "decoupled_weight_decay", 0 or 1, which tells them apart as in torch.optim. Throws if the group does not exist.
  virtual std::map<std::string, double> options(size_t group) const = 0;
  // Sets all options of a group. Missing or unknown names, and values that are invalid for this optimizer, are errors.
  virtual void set_options(size_t group, const std::map<std::string, double>& options) = 0;
  // Throws the errors of set_options, but changes nothing. Accepts everything by default.
  virtual void check_options(size_t /*group*/, const std::map<std::string, double>& /*options*/) const {}
};

// Returns the state of an Adam, AdamW, SGD, Adagrad or RMSprop of torch::optim. Throws for other optimizers.
// `optimizer` must outlive the result.
std::unique_ptr<OptimizerState> state_of(torch::optim::Optimizer& optimizer);

}  // namespace fsdp
