// fully_shard: shards a module's parameters in place.
//
//   auto sharded = fsdp::fully_shard(*model, options);
//   torch::optim::AdamW optimizer(sharded->parameters(), torch::optim::AdamWOptions(1e-4));
//   for (…) { sharded->zero_grad(); auto loss = model->forward(batch); loss.backward();
//             sharded->clip_grad_norm_(1.0); optimizer.step(); }
//
// The module keeps its structure, its FQNs and its parameters' shapes. Each parameter turns into a view of memory that
// is empty until an operator first touches it: that operator gathers the parameter's unit. So every operator on a
// parameter may be a collective: all ranks must run the same operators on sharded parameters in the same order.
//
// An operator that writes to a parameter (torch::nn::init::normal_(layer->weight), weight.data().zero_()) does what it
// does before fully_shard, on values in the dtype of the shards, and each rank keeps its part of the result. If ranks
// write different values, nothing is written, and all ranks get an ErrorOfAllRanks. docs/limitations.md has the rules.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <memory>
#include <vector>

#include "fsdp/options.h"
#include "fsdp/sharded_module.h"

namespace fsdp {

// Makes a unit of all parameters below `module` that no unit has taken. Modules below it that options.auto_wrap_policy
// picks become units first. Annotate bottom-up. Shared parameters go to the unit of the lowest common ancestor of the
// modules that hold them. Errors list the FQNs concerned: a module annotated twice, a parameter in two units, a unit
// without parameters (when nothing below it is sharded either), parameters on several devices.
//
// Parameters may be whole on any device, deferred (deferred_init.h), or on the meta device. The parameters of one unit
// are moved to its shards before the next unit is processed. Meta parameters get uninitialised shards on
// options.device: fill them through shard_slices(), or set Options::param_init_fn or sync_module_states. Meta buffers
// get uninitialised memory there, which must be filled on every rank after fully_shard.
std::shared_ptr<ShardedModule> fully_shard(torch::nn::Module& module, const Options& options);
// Shards several modules as one unit (siblings, without their parent).
std::shared_ptr<ShardedModule> fully_shard(const std::vector<std::shared_ptr<torch::nn::Module>>& modules,
                                           const Options& options);
template <typename Impl>
std::shared_ptr<ShardedModule> fully_shard(const torch::nn::ModuleHolder<Impl>& holder, const Options& options) {
  return fully_shard(static_cast<torch::nn::Module&>(*holder.ptr()), options);
}

}  // namespace fsdp
