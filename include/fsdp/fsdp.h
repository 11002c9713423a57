// FullyShardedDataParallel<M>: a module and its sharding in one object. Thin over fully_shard.
//
//   fsdp::FullyShardedDataParallel<Net> model(Net(…), options);
//   torch::optim::AdamW optimizer(model.parameters(), …);
//   auto loss = model.forward(input);   // or model->forward(input)
#pragma once

#include <utility>

#include "fsdp/fully_shard.h"

namespace fsdp {

// M is a module holder (TORCH_MODULE) or a std::shared_ptr to a module. FQNs are those of the wrapped module.
template <typename M>
class FullyShardedDataParallel {
 public:
  FullyShardedDataParallel(M module, const Options& options)
      : module_(std::move(module)), sharded_(fully_shard(*module_, options)) {}

  template <typename... Args>
  auto forward(Args&&... args) {
    return module_->forward(std::forward<Args>(args)...);
  }
  template <typename... Args>
  auto operator()(Args&&... args) {
    return forward(std::forward<Args>(args)...);
  }

  // The wrapped module.
  M& module() { return module_; }
  auto operator->() { return &*module_; }

  ShardedModule& sharded() { return *sharded_; }
  std::vector<at::Tensor> parameters() const { return sharded_->parameters(); }
  auto named_parameters() const { return sharded_->named_parameters(); }
  void zero_grad(bool set_to_none = true) { sharded_->zero_grad(set_to_none); }
  at::Tensor clip_grad_norm_(double max_norm, double norm_type = 2.0) {
    return sharded_->clip_grad_norm_(max_norm, norm_type);
  }
  void train(bool on = true) { module_->train(on); }
  void eval() { module_->eval(); }

 private:
  M module_;
  std::shared_ptr<ShardedModule> sharded_;
};

}  // namespace fsdp
