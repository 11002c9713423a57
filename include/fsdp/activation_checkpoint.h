// Activation checkpointing: a region of the forward keeps its inputs instead of its activations, and is recomputed when
// backward needs them (Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016; PyTorch's
// torch.utils.checkpoint). Independent of sharding, and composes with it.
//
//   y = fsdp::activation_checkpoint([&](const at::Tensor& x) { return block->forward(x); }, x);
//   y = fsdp::activation_checkpoint_module(fsdp::CheckpointOptions{.preserve_rng_state = false}, block, x, mask);
//
// Meaning. With gradients enabled, the function runs once in forward without recording a graph, and once more, with the
// graph recorded, for each backward that reaches one of its results. A backward nested in the outer one then propagates
// gradients to the inputs and to every parameter that the function uses. Losses and gradients are bitwise equal to the
// results of a plain call. Only a gradient to which several regions, or a region and other code, contribute is summed
// in another order. Without gradients (NoGradGuard, InferenceMode) the function is simply called. With save_ops, the
// first run has gradients enabled, and its inputs require them, as in the recomputation: LibTorch decomposes operators
// depending on that, and kept results serve only the operators that made them. Tensors that the graph of the first run
// saves are released operator by operator.
//
// The function must do the same each time: results that differ in number, shape, dtype or device from the results of
// forward are an error in backward. It must not write to its inputs (an error, in backward at the latest) and should
// not keep references to its results or intermediates. Tensors that it captures, instead of taking them as inputs, must
// be leaves or must not need a gradient. It may call activation_checkpoint itself. The function is kept, with
// everything it captures, until the first backward that does not retain the graph, or until its results are destroyed.
//
// Inputs: arguments of type at::Tensor, std::optional of it or std::vector of it are tracked. The tensors may be
// undefined, have an integer dtype, or need no gradient. Arguments of any other type are copied and passed on as they
// are. Results: the same types, and tuples of them. Each result of a floating or complex dtype requires a gradient,
// since only the recomputation shows whether it needs one.
//
// Errors. Double backward (create_graph) through a region, torch::autograd::grad, and backward with a list of inputs
// throw. (autograd::grad with respect to tensors on which no input of the region depends does not reach the region: to
// autograd::grad, such tensors are unused.) A second backward after one that did not retain the graph throws, as
// without checkpointing. Exceptions of the function, in forward or in recomputation, reach the caller.
//
// State. Random generators (of the CPU, of the devices of the inputs, and `generators`) start a recomputation in the
// state in which they started the forward, and are restored afterwards: dropout repeats, and numbers drawn after the
// region are the same as without checkpointing. Default generators are shared by the threads of a process; draws of
// other threads while a region runs cannot be distinguished. Autocast is as it was in forward, without its cache of
// casts.
//
// Buffers. Side effects on tensors other than its results happen again in the recomputation: running statistics are
// updated twice, as under torch.utils.checkpoint, unless the function asks is_recomputing().
//
// Threads. Safe from any thread; each region is recomputed by the thread that runs its backward. Two threads must not
// run backward through one region at the same time.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "fsdp/detail/tensor_pack.h"

namespace fsdp::recompute {
class OperatorSelection;
}  // namespace fsdp::recompute

namespace fsdp {

// Operators whose results are kept from forward and used in recomputation instead of running the operators again, as in
// torch.utils.checkpoint.create_selective_checkpoint_contexts. Names are those of the dispatcher below autograd and
// autocast: "aten::mm" (every overload) or "aten::sum.dim_IntList" (one overload). Costly operators are worth keeping:
// "aten::mm", "aten::addmm", "aten::bmm", "aten::_scaled_dot_product_flash_attention_for_cpu". Making the list throws
// for unknown operators, and for operators that cannot be kept (they return views, write to their arguments, or
// decompose into others before autograd, as aten::linear does). A list that is not empty is also an error if this
// LibTorch offers no way to intercept operators. Writing to a kept result after the region is an error in backward.
class SavedOperators {
 public:
  SavedOperators() = default;
  SavedOperators(const std::vector<std::string>& names);
  SavedOperators(std::initializer_list<const char*> names);

  const recompute::OperatorSelection* selection() const { return selection_.get(); }  // null if empty

 private:
  std::shared_ptr<const recompute::OperatorSelection> selection_;
};

struct CheckpointOptions {
  bool preserve_rng_state = true;
  // Additional generators that the function draws from. Used only with preserve_rng_state.
  std::vector<at::Generator> generators = {};
  SavedOperators save_ops = {};
};

// The core function, from tensors to tensors, without the conversion of other types.
using TensorsFunction = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;
std::vector<at::Tensor> activation_checkpoint_tensors(const CheckpointOptions& options, TensorsFunction function,
                                                      const std::vector<at::Tensor>& inputs);

// Calls function(inputs…), and recomputes it in backward.
template <typename Function, typename... Inputs>
auto activation_checkpoint(const CheckpointOptions& options, Function function, const Inputs&... inputs) {
  using Result = std::decay_t<std::invoke_result_t<Function&, Inputs&...>>;
  static_assert(detail::TensorPack<Result>::kOnlyTensors, "a checkpointed function returns tensors and nothing else");
  std::tuple<Inputs...> arguments(inputs...);
  std::vector<at::Tensor> tensors = detail::take_tensors(arguments);
  auto result = std::make_shared<std::optional<Result>>();
  auto on_tensors = [function = std::move(function), arguments = std::move(arguments),
                     weak = std::weak_ptr(result)](const std::vector<at::Tensor>& given) mutable {
    std::tuple<Inputs...> filled = arguments;
    detail::put_tensors(filled, given);
    Result computed = std::apply(function, filled);
    std::vector<at::Tensor> results = detail::take_tensors(computed);
    if (auto first_run = weak.lock()) *first_run = std::move(computed);
    return results;
  };
  const std::vector<at::Tensor> results = activation_checkpoint_tensors(options, std::move(on_tensors), tensors);
  detail::put_tensors(**result, results);
  return std::move(**result);
}

template <typename Function, typename... Inputs,
          typename = std::enable_if_t<!std::is_same_v<std::decay_t<Function>, CheckpointOptions>>>
auto activation_checkpoint(Function function, const Inputs&... inputs) {
  return activation_checkpoint(CheckpointOptions(), std::move(function), inputs...);
}

// Whether this thread is inside a function that is being recomputed. Side effects that must happen once, such as an
// update of running statistics, should be skipped if it is.
bool is_recomputing();

// Whether any parameter of the module or of its submodules requires a gradient.
bool requires_grad(const torch::nn::Module& module);

// Calls module->forward(inputs…), and recomputes it in backward. A plain call if neither a parameter of the module nor
// an input requires a gradient. `module`: a module holder (TORCH_MODULE) or a std::shared_ptr to a module.
template <typename Module, typename... Inputs>
auto activation_checkpoint_module(const CheckpointOptions& options, Module module, const Inputs&... inputs) {
  std::tuple<Inputs...> arguments(inputs...);
  bool needed = requires_grad(*module);
  detail::TensorPack<std::tuple<Inputs...>>::visit(
      arguments, [&](const at::Tensor& input) { needed = needed || (input.defined() && input.requires_grad()); });
  auto forward = [module = std::move(module)](const Inputs&... given) mutable { return module->forward(given...); };
  return needed ? activation_checkpoint(options, forward, inputs...) : forward(inputs...);
}

// Selects which modules of a sequence are recomputed, and how.
class CheckpointPolicy {
 public:
  CheckpointPolicy() = default;  // selects no module
  // Selects every module.
  static CheckpointPolicy full(CheckpointOptions options = {}) { return every(1, std::move(options)); }
  // Selects the modules with index 0, k, 2k, …; k >= 1.
  static CheckpointPolicy every(int64_t k, CheckpointOptions options = {});
  // Selects every module, and keeps the results of these operators.
  static CheckpointPolicy selected_operators(const std::vector<std::string>& names);

  bool applies_to(int64_t index) const { return every_ > 0 && index % every_ == 0; }
  const CheckpointOptions& options() const { return options_; }

  // Calls module->forward(inputs…), through activation_checkpoint_module if the policy applies to `index`.
  template <typename Module, typename... Inputs>
  auto forward(int64_t index, Module module, const Inputs&... inputs) const {
    return applies_to(index) ? activation_checkpoint_module(options_, std::move(module), inputs...)
                             : module->forward(inputs...);
  }

 private:
  int64_t every_ = 0;
  CheckpointOptions options_;
};

// A module that is always called through activation_checkpoint_module. Not a module itself: register the module as
// usual, so that FQNs stay the same, and call it through this object.
//
//   Checkpointed<Block> block{register_module("block", Block(…))};
//   y = block(x);
template <typename Module>
class Checkpointed {
 public:
  explicit Checkpointed(Module module, CheckpointOptions options = {})
      : module_(std::move(module)), options_(std::move(options)) {}

  template <typename... Inputs>
  auto operator()(const Inputs&... inputs) {
    return activation_checkpoint_module(options_, module_, inputs...);
  }
  Module& module() { return module_; }
  auto operator->() { return &*module_; }

 private:
  Module module_;
  CheckpointOptions options_;
};

}  // namespace fsdp
