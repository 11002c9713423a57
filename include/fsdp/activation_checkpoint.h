// Activation checkpointing: a region of the forward keeps its inputs instead of its activations, and runs again when
// backward needs them (Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016; PyTorch's
// torch.utils.checkpoint). Independent of sharding, and composes with it.
//
//   y = fsdp::activation_checkpoint([&](const at::Tensor& x) { return block->forward(x); }, x);
//   y = fsdp::activation_checkpoint_module(fsdp::CheckpointOptions{.preserve_rng_state = false}, block, x, mask);
//
// Meaning. With gradients enabled, the function runs once in forward without recording a graph, and once more for each
// backward that reaches one of its results, with the graph recorded; a backward nested in the outer one then brings
// gradients to the inputs and to every parameter that the function uses. Losses and gradients are those of a plain
// call, to the bit; only a gradient to which several regions, or a region and other code, contribute is summed in
// another order. Without gradients (NoGradGuard, InferenceMode) the function is simply called. With save_ops the first
// run has gradients enabled, and inputs that require them, as recomputation has: LibTorch decomposes operators by that,
// and kept results serve only the operators that have made them. What its graph saves is let go operator by operator.
//
// The function must do the same each time: results that differ in number, shape, dtype or device from those of forward
// are an error in backward. It must not write to its inputs (an error, in backward at the latest) and should not keep
// references to what it computes. Tensors that it captures, instead of taking them as inputs, must be leaves or need no
// gradient. It may call activation_checkpoint itself. It is kept, with all it captures, until the first backward that
// does not retain the graph, or until its results are gone.
//
// Inputs: at::Tensor, std::optional of it or std::vector of it are tracked, and may be undefined, of an integer dtype,
// or need no gradient. Arguments of any other type are copied and handed over as they are. Results: the same types, and
// tuples of them. Each result of a floating or complex dtype requires a gradient, since only the recomputation shows
// whether it needs one.
//
// Errors. Double backward (create_graph) through a region, torch::autograd::grad and backward with a list of inputs
// raise. (autograd::grad for tensors that no input of the region leads to does not reach the region: such tensors look
// unused to it.) A second backward after one that did not retain the graph raises, as without checkpointing. What the
// function throws, in forward or in recomputation, reaches the caller.
//
// State. Random generators (of the CPU, of the devices of the inputs, and `generators`) start a recomputation in the
// state in which they started the forward, and are then put back: dropout repeats, and numbers drawn after the region
// are those drawn without checkpointing. Default generators are shared by the threads of a process; draws from them in
// other threads while a region runs are not told apart. Autocast is as it was in forward, without its cache of casts.
//
// Buffers. What the function does to tensors other than its results it does again: running statistics that it updates
// are updated twice, as under torch.utils.checkpoint, unless it asks is_recomputing().
//
// Threads. Safe from any thread; each region is recomputed by the thread that runs its backward. Two threads must not
// run backward through one region at a time.
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

namespace fsdp {

class OperatorSelection;

// Operators whose results are kept from forward and used in recomputation instead of running them again, as in
// torch.utils.checkpoint.create_selective_checkpoint_contexts. Named as the dispatcher does, below autograd and
// autocast: "aten::mm" (every overload) or "aten::sum.dim_IntList" (one). Costly ones are worth it: "aten::mm",
// "aten::addmm", "aten::bmm", "aten::_scaled_dot_product_flash_attention_for_cpu". Unknown operators, and those that
// cannot be kept (they return views, write to their arguments, or decompose into others before autograd, as
// aten::linear does) are errors when the list is made. So is a list that is not empty where this LibTorch leaves no
// way to see operators. A kept result that is written to after the region is an error in backward.
class SavedOperators {
 public:
  SavedOperators() = default;
  SavedOperators(const std::vector<std::string>& names);
  SavedOperators(std::initializer_list<const char*> names);

  const OperatorSelection* selection() const { return selection_.get(); }  // null when empty

 private:
  std::shared_ptr<const OperatorSelection> selection_;
};

struct CheckpointOptions {
  bool preserve_rng_state = true;
  // Further generators that the function draws from. Kept only with preserve_rng_state.
  std::vector<at::Generator> generators = {};
  SavedOperators save_ops = {};
};

// The core: tensors to tensors.
using TensorsFunction = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;
std::vector<at::Tensor> activation_checkpoint_tensors(const CheckpointOptions& options, TensorsFunction function,
                                                      const std::vector<at::Tensor>& inputs);

// function(inputs…), recomputed in backward.
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

// Whether this thread is inside a function that is being recomputed. What must happen once, such as an update of
// running statistics, happens when it is not.
bool is_recomputing();

// Whether a parameter of the module, or below it, requires a gradient.
bool requires_grad(const torch::nn::Module& module);

// module->forward(inputs…), recomputed in backward; a plain call when neither a parameter of the module nor an input
// requires a gradient. `module`: a module holder (TORCH_MODULE) or a std::shared_ptr to a module.
template <typename Module, typename... Inputs>
auto activation_checkpoint_module(const CheckpointOptions& options, Module module, const Inputs&... inputs) {
  std::tuple<Inputs...> arguments(inputs...);
  bool needed = requires_grad(*module);
  detail::TensorPack<std::tuple<Inputs...>>::visit(
      arguments, [&](const at::Tensor& input) { needed = needed || (input.defined() && input.requires_grad()); });
  auto forward = [module](const Inputs&... given) mutable { return module->forward(given...); };
  return needed ? activation_checkpoint(options, forward, inputs...) : forward(inputs...);
}

// Which of a row of modules are recomputed, and how.
class CheckpointPolicy {
 public:
  CheckpointPolicy() = default;  // none
  // Every one.
  static CheckpointPolicy full(CheckpointOptions options = {}) { return every(1, std::move(options)); }
  // Those with index 0, k, 2k, …; k >= 1.
  static CheckpointPolicy every(int64_t k, CheckpointOptions options = {});
  // Every one, with the results of these operators kept.
  static CheckpointPolicy selected_operators(const std::vector<std::string>& names);

  bool applies_to(int64_t index) const { return every_ > 0 && index % every_ == 0; }
  const CheckpointOptions& options() const { return options_; }

  // module->forward(inputs…), through activation_checkpoint_module if the policy applies to `index`.
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
// ever, so FQNs stay, and call it through this.
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
