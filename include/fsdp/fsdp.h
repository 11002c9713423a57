// FullyShardedDataParallel<M>: a module and its sharding in one object. A thin layer over fully_shard, which adds
// functions that must see forward, train() and eval(). Includes all headers that a first program needs, that of the
// communicators' factories among them.
//
//   fsdp::FullyShardedDataParallel<Net> model(Net(…), options);
//   torch::optim::AdamW optimizer(model.parameters(), …);
//   auto loss = model.forward(input);
#pragma once

#include <type_traits>
#include <utility>

#include "fsdp/backends.h"
#include "fsdp/cast_floating.h"
#include "fsdp/fully_shard.h"
#include "fsdp/tensor_parallel.h"

namespace fsdp {

// Options that fully_shard cannot implement because it has no hook for them.
struct WrapperOptions {
  // Whether forward casts its floating-point arguments to Options::param_dtype, where that is set.
  bool cast_root_forward_inputs = true;
  // dtype to which forward casts the floating-point tensors of its result. Unset: no cast.
  std::optional<c10::ScalarType> output_dtype = std::nullopt;
  // Whether eval() switches to full precision, and train() back (ShardedModule::set_full_precision).
  bool full_precision_in_eval = false;
};

// M is a module holder (TORCH_MODULE) or a std::shared_ptr to a module. FQNs are those of the wrapped module.
template <typename M>
class FullyShardedDataParallel {
 public:
  FullyShardedDataParallel(M module, const Options& options, const WrapperOptions& wrapper = {})
      : module_(std::move(module)),
        sharded_(fully_shard(*module_, options)),
        input_dtype_(wrapper.cast_root_forward_inputs ? options.param_dtype : std::nullopt),
        wrapper_(wrapper) {}

  // Calls the module's forward, with the casts that the options request before and after it.
  template <typename... Args>
  auto forward(Args&&... args) {
    auto result = module_->forward(cast_input(std::forward<Args>(args))...);
    return wrapper_.output_dtype ? cast_floating(std::move(result), *wrapper_.output_dtype) : result;
  }
  template <typename... Args>
  auto operator()(Args&&... args) {
    return forward(std::forward<Args>(args)...);
  }

  // The wrapped module. Functions called on it directly do not cast.
  M& module() { return module_; }
  auto operator->() { return &*module_; }

  ShardedModule& sharded() { return *sharded_; }
  std::vector<at::Tensor> parameters() const { return sharded_->parameters(); }
  auto named_parameters() const { return sharded_->named_parameters(); }
  void zero_grad(bool set_to_none = true) { sharded_->zero_grad(set_to_none); }
  at::Tensor clip_grad_norm_(double max_norm, double norm_type = 2.0) {
    return sharded_->clip_grad_norm_(max_norm, norm_type);
  }
  [[nodiscard]] ShardedModule::NoSync no_sync() { return sharded_->no_sync(); }
  // Calls `function` on each module of the tree, children first, while all parameters are whole and may be written.
  // Used to run initialisers. Collective.
  void apply(const std::function<void(torch::nn::Module&)>& function) {
    sharded_->with_full_params([&] { module_->apply(function); });
  }
  void summon_full_params(const SummonOptions& options, const std::function<void()>& body) {
    sharded_->summon_full_params(options, body);
  }
  void train(bool on = true) {
    module_->train(on);
    if (wrapper_.full_precision_in_eval) sharded_->set_full_precision(!on);
  }
  void eval() { train(false); }

 private:
  template <typename T>
  auto cast_input(T&& value) {
    using Value = std::decay_t<T>;
    bool cast = input_dtype_ && !sharded_->full_precision();
    return cast ? cast_floating(Value(std::forward<T>(value)), *input_dtype_) : Value(std::forward<T>(value));
  }

  M module_;
  std::shared_ptr<ShardedModule> sharded_;
  std::optional<c10::ScalarType> input_dtype_;
  WrapperOptions wrapper_;
};

}  // namespace fsdp
