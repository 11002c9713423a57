// Deferred initialisation: builds a module without memory for its parameters, so that a model that fits on no single
// device can be constructed by plain single-device code and sharded unit by unit.
//
//   auto model = fsdp::deferred_init([&] { return MyModel(config); });
//   auto sharded = fsdp::fully_shard(model, options);
//
// Under the guard, operators that create tensors, and operators on such tensors, are recorded instead of run. A
// *deferred* tensor has its shape, strides, dtype and device, but no memory. fully_shard replays the recorded operators
// of each unit's parameters, unit by unit, into the shards: at its peak a rank holds its shards and one whole unit.
//
// Values are bitwise equal to those of ordinary construction: each random operator draws from the state that the
// generator would have had, whatever the order of replay, also if a parameter is initialised again or from another
// parameter. After everything is replayed, the generator is in the state in which construction would have left it,
// unless it was seeded or used in between. To detect that, the generator advances by one number until then.
//
// After the guard has ended, operators on deferred tensors alone, and operators that write a deferred tensor, are still
// recorded (apply(init_weights), to(kBFloat16), clone()). An operator that reads a deferred and an ordinary tensor, or
// whose result is not a tensor (item()), first materializes the deferred tensor. Autograd does not see recorded
// operators.
//
// Small constants (up to a few KiB) get memory at once, so that code may fill them through pointers; reading the
// pointer of another deferred tensor is an error. Ordinary tensors that recorded operators read are copied if they have
// at most 1 MiB. Larger ones must not be written before replay; this is detected as an error.
//
// Threads: recording belongs to the thread that builds; replay may run on another one, and blocks other replays.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <utility>
#include <vector>

namespace fsdp {

// While it lives, this thread builds modules without memory. May be nested.
class DeferredInitGuard {
 public:
  DeferredInitGuard();
  ~DeferredInitGuard();
  DeferredInitGuard(const DeferredInitGuard&) = delete;
  DeferredInitGuard& operator=(const DeferredInitGuard&) = delete;

 private:
  c10::impl::IncludeDispatchKeyGuard include_;
};

// While it lives, enclosing guards have no effect: for code that must have memory, such as torch::tensor() of a large
// std::vector.
class EagerInitGuard {
 public:
  EagerInitGuard();
  ~EagerInitGuard();
  EagerInitGuard(const EagerInitGuard&) = delete;
  EagerInitGuard& operator=(const EagerInitGuard&) = delete;

 private:
  int before_;
  c10::impl::ExcludeDispatchKeyGuard exclude_;
};

// Returns the result of `build`, called under a DeferredInitGuard.
template <typename Build>
auto deferred_init(Build&& build) {
  DeferredInitGuard guard;
  return std::forward<Build>(build)();
}

// Whether the tensor was made under a guard and has not been materialised.
bool is_deferred(const at::TensorBase& tensor);

// Gives the tensor its memory and values, and makes it an ordinary tensor. Does nothing if it already is one. Deferred
// tensors that share storage with it share this memory.
void materialize(const at::Tensor& tensor);
void materialize(const std::vector<at::Tensor>& tensors);
// Materializes all parameters and buffers of a module: their values are those of ordinary construction.
void materialize(torch::nn::Module& module);
template <typename Impl>
void materialize(const torch::nn::ModuleHolder<Impl>& holder) {
  materialize(static_cast<torch::nn::Module&>(*holder.ptr()));
}

}  // namespace fsdp
