#include "fsdp/optimizer_state.h"

#include <c10/util/Exception.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <tuple>
#include <type_traits>
#include <unordered_set>
#include <utility>

#include "optim/named_state.h"

namespace fsdp {
namespace {

using namespace torch::optim;

// ---------------------------------------------------------------- what there is

template <typename State, typename Visit>
void visit_adam_state(State& state, const Visit& visit) {
  visit("step", state.step());
  visit("exp_avg", state.exp_avg());
  visit("exp_avg_sq", state.exp_avg_sq());
  visit("max_exp_avg_sq", state.max_exp_avg_sq());
}
template <typename Visit>
void visit_state(AdamParamState& state, const Visit& visit) {
  visit_adam_state(state, visit);
}
template <typename Visit>
void visit_state(AdamWParamState& state, const Visit& visit) {
  visit_adam_state(state, visit);
}
template <typename Visit>
void visit_state(SGDParamState& state, const Visit& visit) {
  visit("momentum_buffer", state.momentum_buffer());
}
template <typename Visit>
void visit_state(AdagradParamState& state, const Visit& visit) {
  visit("step", state.step());
  visit("sum", state.sum());
}
template <typename Visit>
void visit_state(RMSpropParamState& state, const Visit& visit) {
  visit("step", state.step());
  visit("square_avg", state.square_avg());
  visit("momentum_buffer", state.momentum_buffer());
  visit("grad_avg", state.grad_avg());
}

template <typename Options, typename Visit>
void visit_adam_options(Options& options, const Visit& visit) {
  visit("lr", options.lr());
  visit("beta1", std::get<0>(options.betas()));
  visit("beta2", std::get<1>(options.betas()));
  visit("eps", options.eps());
  visit("weight_decay", options.weight_decay());
  visit("amsgrad", options.amsgrad());
}
template <typename Visit>
void visit_options(AdamOptions& options, const Visit& visit) {
  visit_adam_options(options, visit);
}
template <typename Visit>
void visit_options(AdamWOptions& options, const Visit& visit) {
  visit_adam_options(options, visit);
}
template <typename Visit>
void visit_options(SGDOptions& options, const Visit& visit) {
  visit("lr", options.lr());
  visit("momentum", options.momentum());
  visit("dampening", options.dampening());
  visit("weight_decay", options.weight_decay());
  visit("nesterov", options.nesterov());
}
template <typename Visit>
void visit_options(AdagradOptions& options, const Visit& visit) {
  visit("lr", options.lr());
  visit("lr_decay", options.lr_decay());
  visit("weight_decay", options.weight_decay());
  visit("initial_accumulator_value", options.initial_accumulator_value());
  visit("eps", options.eps());
}
template <typename Visit>
void visit_options(RMSpropOptions& options, const Visit& visit) {
  visit("lr", options.lr());
  visit("alpha", options.alpha());
  visit("eps", options.eps());
  visit("weight_decay", options.weight_decay());
  visit("momentum", options.momentum());
  visit("centered", options.centered());
}

// The option in which Adam and AdamW differ, under torch's name; their states look alike.
template <typename Options>
std::map<std::string, double> fixed_options() {
  if constexpr (std::is_same_v<Options, AdamOptions>) return {{"decoupled_weight_decay", 0.0}};
  if constexpr (std::is_same_v<Options, AdamWOptions>) return {{"decoupled_weight_decay", 1.0}};
  return {};
}

// Whether an optimizer has this tensor only with some options (amsgrad, momentum, centered).
bool is_optional(const std::string& name) {
  return name == "max_exp_avg_sq" || name == "momentum_buffer" || name == "grad_avg";
}

// ---------------------------------------------------------------- by name

struct Collect {
  LeafState& found;
  void operator()(const char* name, at::Tensor& value) const {
    if (value.defined()) found.tensors[name] = value;
  }
  void operator()(const char* name, int64_t& value) const { found.scalars[name] = static_cast<double>(value); }
};

struct Assign {
  optim::NamedState& given;
  void operator()(const char* name, at::Tensor& value) const {
    value = is_optional(name) ? given.take_tensor_if_there(name) : given.take_tensor(name);
  }
  void operator()(const char* name, int64_t& value) const { value = static_cast<int64_t>(given.take_scalar(name)); }
};

template <typename ParamState, typename Options>
class TorchOptimizerState final : public OptimizerState {
 public:
  TorchOptimizerState(Optimizer& optimizer, std::string name) : optimizer_(optimizer), name_(std::move(name)) {}

  std::vector<std::vector<at::Tensor>> groups() const override {
    std::vector<std::vector<at::Tensor>> groups;
    for (const OptimizerParamGroup& group : optimizer_.param_groups()) groups.push_back(group.params());
    return groups;
  }

  std::optional<LeafState> leaf(const at::Tensor& leaf) const override {
    const auto kept = optimizer_.state().find(leaf.unsafeGetTensorImpl());
    if (kept == optimizer_.state().end()) return std::nullopt;
    LeafState found;
    visit_state(static_cast<ParamState&>(*kept->second), Collect{found});
    return found;
  }

  void set_leaf(const at::Tensor& leaf, const std::optional<LeafState>& state) override {
    check_is_own(leaf);
    if (!state) {
      optimizer_.state().erase(leaf.unsafeGetTensorImpl());
      return;
    }
    optimizer_.state()[leaf.unsafeGetTensorImpl()] = taken(leaf, *state);
  }

  void check_leaf(const at::Tensor& leaf, const LeafState& state) const override { taken(leaf, state); }

  std::map<std::string, double> options(size_t group) const override {
    std::map<std::string, double> values = fixed_options<Options>();
    visit_options(options_of(group), [&](const char* name, auto& value) { values[name] = static_cast<double>(value); });
    return values;
  }

  void set_options(size_t group, const std::map<std::string, double>& options) override {
    take(options, options_of(group));
  }

  void check_options(size_t group, const std::map<std::string, double>& options) const override {
    Options copy = options_of(group);
    take(options, copy);
  }

 private:
  std::unique_ptr<ParamState> taken(const at::Tensor& leaf, const LeafState& state) const {
    optim::NamedState given(name_, leaf, state);
    auto kept = std::make_unique<ParamState>();
    visit_state(*kept, Assign{given});
    given.check_all_taken();
    return kept;
  }
  void take(const std::map<std::string, double>& from, Options& to) const {
    optim::NamedOptions given(name_, from);
    for (const auto& [name, value] : fixed_options<Options>()) given.take_fixed(name, value);
    visit_options(to, [&](const char* name, auto& value) {
      value = static_cast<std::decay_t<decltype(value)>>(given.take(name));
    });
    given.check_all_taken();
  }
  Options& options_of(size_t group) const {
    TORCH_CHECK(group < optimizer_.param_groups().size(), name_, ": parameter group ", group, " of ",
                optimizer_.param_groups().size());
    return static_cast<Options&>(optimizer_.param_groups()[group].options());
  }
  void check_is_own(const at::Tensor& leaf) {
    if (leaves_.count(leaf.unsafeGetTensorImpl()) == 0) note_leaves();  // param groups may have been added
    TORCH_CHECK(leaves_.count(leaf.unsafeGetTensorImpl()) > 0, name_, ": a tensor of shape ", leaf.sizes(),
                " is not a leaf of this optimizer");
  }
  void note_leaves() {
    for (const OptimizerParamGroup& group : optimizer_.param_groups()) {
      for (const at::Tensor& own : group.params()) leaves_.insert(own.unsafeGetTensorImpl());
    }
  }

  Optimizer& optimizer_;
  std::string name_;
  std::unordered_set<const at::TensorImpl*> leaves_;
};

template <typename Kind, typename ParamState, typename Options>
std::unique_ptr<OptimizerState> state_if(Optimizer& optimizer, const char* name) {
  return dynamic_cast<Kind*>(&optimizer) ? std::make_unique<TorchOptimizerState<ParamState, Options>>(optimizer, name)
                                         : nullptr;
}

}  // namespace

std::unique_ptr<OptimizerState> state_of(Optimizer& optimizer) {
  if (auto state = state_if<Adam, AdamParamState, AdamOptions>(optimizer, "Adam")) return state;
  if (auto state = state_if<AdamW, AdamWParamState, AdamWOptions>(optimizer, "AdamW")) return state;
  if (auto state = state_if<SGD, SGDParamState, SGDOptions>(optimizer, "SGD")) return state;
  if (auto state = state_if<Adagrad, AdagradParamState, AdagradOptions>(optimizer, "Adagrad")) return state;
  if (auto state = state_if<RMSprop, RMSpropParamState, RMSpropOptions>(optimizer, "RMSprop")) return state;
  TORCH_CHECK(
      false,
      "fsdp: state_of knows Adam, AdamW, SGD, Adagrad and RMSprop of torch::optim; for another optimizer derive "
      "from fsdp::OptimizerState");
}

}  // namespace fsdp
