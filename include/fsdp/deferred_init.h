// Deferred initialisation: builds a module without memory for its parameters, so that a model that fits on no single
// device can be constructed as plain single-device code and be sharded unit by unit.
//
//   auto model = fsdp::deferred_init([&] { return MyModel(config); });
//   auto sharded = fsdp::fully_shard(model, options);
//
// Under the guard, operators that make tensors, and operators on tensors made so, are recorded instead of run: such a
// *deferred* tensor has its shape, strides, dtype and device, and no memory. fully_shard replays what each unit's
// parameters need, unit by unit, into the shards: at its peak a rank holds its shards and one whole unit.
//
// Values are those of ordinary construction, bit for bit: each random operator draws from the state in which the
// generator would have been, whatever the order of replay, also where a parameter is initialised again, or from another
// parameter. When all is replayed the generator is where construction would have left it, unless it was seeded or used
// in between. Until then it has moved by one number, by which that is noticed.
//
// After the guard has ended, operators on deferred tensors alone, and those that write one, are still recorded
// (apply(init_weights), to(kBFloat16), clone()); an operator that reads one beside an ordinary tensor, or whose result
// is no tensor (item()), gives the deferred tensor its memory first. Autograd does not see recorded operators.
//
// Small constants (up to a few KiB) have memory at once, so that code may fill them through pointers; reading the
// pointer of another deferred tensor is an error. Ordinary tensors that recorded operators read are copied up to 1 MiB;
// larger ones must not be written before replay: an error says so.
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

// While it lives, this thread builds without memory. May be nested.
class DeferredInitGuard {
 public:
  DeferredInitGuard();
  ~DeferredInitGuard();
  DeferredInitGuard(const DeferredInitGuard&) = delete;
  DeferredInitGuard& operator=(const DeferredInitGuard&) = delete;

 private:
  c10::impl::IncludeDispatchKeyGuard include_;
};

// While it lives, the guards around it are without effect: for code that must have memory, such as torch::tensor() of a
// large std::vector.
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

// The result of `build`, called under a DeferredInitGuard.
template <typename Build>
auto deferred_init(Build&& build) {
  DeferredInitGuard guard;
  return std::forward<Build>(build)();
}

// Whether the tensor was made under a guard and has not been materialised.
bool is_deferred(const at::TensorBase& tensor);

// Gives the tensor its memory and values, and makes it an ordinary one; nothing if it is that already. Deferred tensors
// that share storage with it share this memory.
void materialize(const at::Tensor& tensor);
void materialize(const std::vector<at::Tensor>& tensors);
// All parameters and buffers of a module: what ordinary construction would have made.
void materialize(torch::nn::Module& module);
template <typename Impl>
void materialize(const torch::nn::ModuleHolder<Impl>& holder) {
  materialize(static_cast<torch::nn::Module&>(*holder.ptr()));
}

}  // namespace fsdp
