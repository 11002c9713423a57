#include "optim/sgd.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_mul.h>

#include <map>
#include <optional>
#include <string>
#include <utility>

#include "base/allocation_tag.h"
#include "optim/named_state.h"
#include "optim/one_group_state.h"

namespace fsdp::optim {

Sgd::Sgd(std::vector<at::Tensor> parameters, const SgdOptions& options)
    : options_(options), parameters_(std::move(parameters)), momentum_(parameters_.size()) {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& p = parameters_[i];
    TORCH_CHECK(p.is_leaf() && p.is_floating_point(), "Sgd: parameter ", i,
                " must be a leaf of a floating dtype, but has sizes ", p.sizes(), " and dtype ", p.scalar_type());
  }
}

void Sgd::step(double gradient_scale) {
  const at::NoGradGuard no_grad;
  std::vector<size_t> part;
  int64_t nbytes = 0;
  const auto finish_part = [&] {
    if (!part.empty()) update(part, gradient_scale);
    if (part_done_) part_done_();
    part.clear();
    nbytes = 0;
  };
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (!parameters_[i].grad().defined()) continue;
    part.push_back(i);
    nbytes += static_cast<int64_t>(parameters_[i].nbytes());
    if (nbytes >= part_nbytes_) finish_part();
  }
  finish_part();
}

void Sgd::after_each_part(std::function<void()> done, int64_t nbytes) {
  part_done_ = std::move(done);
  part_nbytes_ = nbytes;
}

// The operations and their order are those of torch::optim::SGD, so that results have the same bits.
void Sgd::update(const std::vector<size_t>& part, double gradient_scale) {
  std::vector<at::Tensor> change = directions(part, gradient_scale);
  if (options_.momentum != 0) change = moved_momentum(part, change);
  std::vector<at::Tensor> parameters;
  for (size_t i : part) parameters.push_back(parameters_[i]);
  at::_foreach_add_(parameters, change, -options_.learning_rate);
}

std::vector<at::Tensor> Sgd::directions(const std::vector<size_t>& part, double gradient_scale) const {
  std::vector<at::Tensor> parameters, change;
  for (size_t i : part) {
    parameters.push_back(parameters_[i]);
    change.push_back(parameters_[i].grad().to(parameters_[i].scalar_type()));  // casts only if the dtypes differ
  }
  if (gradient_scale != 1.0) change = at::_foreach_mul(change, gradient_scale);
  if (options_.weight_decay != 0) change = at::_foreach_add(change, parameters, options_.weight_decay);
  return change;
}

std::vector<at::Tensor> Sgd::moved_momentum(const std::vector<size_t>& part,
                                            const std::vector<at::Tensor>& directions) {
  std::vector<at::Tensor> all, moving, added;
  for (size_t at = 0; at < part.size(); ++at) {
    at::Tensor& momentum = momentum_[part[at]];
    if (momentum.defined()) {
      moving.push_back(momentum);
      added.push_back(directions[at]);
    } else {
      base::AllocationTag tag(base::AllocationPurpose::kOptimizerState);
      momentum = directions[at].clone();
    }
    all.push_back(momentum);
  }
  if (moving.empty()) return all;
  at::_foreach_mul_(moving, options_.momentum);
  at::_foreach_add_(moving, added);
  return all;
}

class Sgd::Named final : public OneGroupState {
 public:
  explicit Named(Sgd& optimizer) : OneGroupState(kName, optimizer.parameters_), optimizer_(optimizer) {}

  std::optional<LeafState> leaf(const at::Tensor& leaf) const override {
    const std::optional<size_t> at = position(leaf);
    if (!at || !optimizer_.momentum_[*at].defined()) return std::nullopt;
    return LeafState{{{"momentum_buffer", optimizer_.momentum_[*at]}}, {}};
  }

  void set_leaf(const at::Tensor& leaf, const std::optional<LeafState>& given) override {
    at::Tensor& momentum = optimizer_.momentum_[own_position(leaf)];
    momentum = given ? taken(leaf, *given) : at::Tensor();
  }

  void check_leaf(const at::Tensor& leaf, const LeafState& given) const override { taken(leaf, given); }

  std::map<std::string, double> options(size_t group) const override {
    check_group(group);
    const SgdOptions& options = optimizer_.options_;
    return {{"lr", options.learning_rate},
            {"momentum", options.momentum},
            {"dampening", 0.0},
            {"weight_decay", options.weight_decay},
            {"nesterov", 0.0}};
  }

  void set_options(size_t group, const std::map<std::string, double>& given) override {
    check_group(group);
    optimizer_.options_ = taken(given);
  }

  void check_options(size_t group, const std::map<std::string, double>& given) const override {
    check_group(group);
    taken(given);
  }

 private:
  static constexpr const char* kName = "Sgd";

  static at::Tensor taken(const at::Tensor& leaf, const LeafState& given) {
    NamedState named(kName, leaf, given);
    at::Tensor momentum = named.take_tensor_if_there("momentum_buffer");
    named.check_all_taken();
    return momentum;
  }
  static SgdOptions taken(const std::map<std::string, double>& given) {
    NamedOptions named(kName, given);
    named.take_fixed("dampening", 0.0);
    named.take_fixed("nesterov", 0.0);
    const SgdOptions options{named.take("lr"), named.take("momentum"), named.take("weight_decay")};
    named.check_all_taken();
    return options;
  }

  Sgd& optimizer_;
};

std::unique_ptr<OptimizerState> Sgd::named_state() { return std::make_unique<Named>(*this); }

int64_t Sgd::state_nbytes() const {
  size_t nbytes = 0;
  for (const at::Tensor& momentum : momentum_) nbytes += momentum.defined() ? momentum.nbytes() : 0;
  return static_cast<int64_t>(nbytes);
}

}  // namespace fsdp::optim
