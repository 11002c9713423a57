// The handle of a module whose parameters are sharded, as fully_shard returns it.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/auto_units.h"
#include "fsdp/backward_options.h"
#include "fsdp/diagnostics.h"
#include "fsdp/full_parameters.h"
#include "fsdp/gradient_hooks.h"
#include "fsdp/tracing.h"

namespace torch::optim {
class Optimizer;
}

namespace fsdp::engine {
class Engine;
class Unit;
}  // namespace fsdp::engine

namespace fsdp {

class ReshardAfterForward;

// Gathers in flight. Destroying the handle does not cancel them.
class UnshardHandle {
 public:
  UnshardHandle() = default;
  UnshardHandle(std::shared_ptr<engine::Engine> engine, std::vector<engine::Unit*> units)
      : engine_(std::move(engine)), units_(std::move(units)) {}
  // Blocks until the units are gathered. Further calls do nothing.
  void wait();

 private:
  std::shared_ptr<engine::Engine> engine_;
  std::vector<engine::Unit*> units_;
};

// A module whose parameters are sharded, as returned by fully_shard. A handle of an inner module stays valid after an
// outer module was annotated, and then represents the whole tree. The handle need not be kept: parameters hold what
// they need.
//
// Threads: one thread trains; inference from several threads is safe on one rank.
class ShardedModule {
 public:
  explicit ShardedModule(std::shared_ptr<engine::Engine> engine) : engine_(std::move(engine)) {}

  // The leaves to build an optimizer on, in unit order. These are not the module's own parameters: an optimizer built
  // on the module's parameters gets an error at its first step.
  std::vector<at::Tensor> parameters() const;
  // The leaves with their names: original FQNs (use_orig_params), or "<unit>.flat_param" ("<unit>.flat_param_2", …).
  std::vector<std::pair<std::string, at::Tensor>> named_parameters() const;
  // The part of each original parameter that this rank holds, whether use_orig_params is set or not. Does not
  // communicate.
  std::vector<ShardSlice> shard_slices() const;

  // Freezes or unfreezes one of the module's parameters, as parameter.set_requires_grad(on) does. The change takes
  // effect at once here, and at the next forward or call of parameters() where requires_grad was set on the module's
  // parameter, or on a leaf, directly. The leaf follows. A frozen parameter keeps its value and, like a plain one, the
  // gradient that it has until that is cleared. Memory for gradients is allocated for a FlatParameter of which any
  // parameter requires one. All ranks must make the same change between steps: they compare at the next use. Errors:
  // gradients accumulated without communication; some but not all parameters of a flat leaf.
  void set_requires_grad(const at::Tensor& parameter, bool on);

  // Clears the gradients of the shards.
  void zero_grad(bool set_to_none = true);

  // The norm of the gradients over all ranks, as a scalar fp64 tensor on the CPU. norm_type may be infinity.
  // error_if_nonfinite: throw (on all ranks) when the norm is not finite. Collective.
  at::Tensor grad_norm(double norm_type = 2.0, bool error_if_nonfinite = false);

  // The 2-norm of the gradients over all ranks, like grad_norm(), but without reading gradients again that are
  // unchanged since backward reduced them. With set_reductions_see_norm(true), the passes that sum gradients over the
  // ranks also sum their squares. Gradients without such a sum are read: gradients that were added to earlier ones,
  // went through a gradient hook, were reduced over NCCL, or were written since according to their version counters. A
  // write that changes no version counter (through data_ptr(), by the caller's own collective, by
  // ShardedGradScaler::unscale_) is not noticed. Collective.
  at::Tensor reduced_grad_norm(bool error_if_nonfinite = false);

  // Scales the gradients so that their norm over all ranks is at most max_norm. Returns the norm before scaling, as
  // grad_norm() does. Collective.
  at::Tensor clip_grad_norm_(double max_norm, double norm_type = 2.0, bool error_if_nonfinite = false);

  // -- Whole parameters --

  // Gathers the units one by one and calls `visit` with each whole parameter, in the dtype of the shards. The tensor is
  // valid only during the call. Collective: all ranks take part; `visit` may do nothing on some of them.
  void for_each_full_parameter(const std::function<void(const std::string& fqn, const at::Tensor& full)>& visit,
                               const FullParameterOptions& options = {});

  // Runs `body` while the module's parameters are gathered and may be written. Afterwards the elements that changed are
  // written back to the shards, unless `body` threw. All ranks must write the same values, or each rank at least the
  // part that it holds. Collective. Outside of the scope, each operator that writes to a parameter gathers it anew
  // (fully_shard.h).
  void summon_full_params(const SummonOptions& options, const std::function<void()>& body);
  // Like summon_full_params, for all units and without gradients.
  void with_full_params(const std::function<void()>& body, bool writeback = true);

  // For optimizers that need whole parameters (Muon, Shampoo, Adafactor, …). Gathers the values and gradients of one
  // unit after the other. Calls `update` for each parameter that has a gradient, on one rank of the shard group: its
  // owner. The owner never changes, so that optimizer state is spread over the ranks as well. Values that `update`
  // writes to `value` go to the shards. Units that are not sharded are updated on every rank alike. A parameter that is
  // split over a tensor-parallel group has one owner in it, too; it is gathered on all of the group's ranks for that.
  // Collective.
  void update_whole_parameters(const std::function<void(const WholeParameter& parameter)>& update);

  // Throws an error that names the optimizer if its result on shards would differ from its result on whole parameters:
  // torch::optim's LBFGS, whose inner products run over all parameters. The other optimizers of torch::optim work
  // element by element.
  static void check_optimizer(const torch::optim::Optimizer& optimizer);

  // -- Gradient accumulation --

  // Backward passes do not communicate until the returned scope ends (BackwardOptions::requires_gradient_sync).
  //   { auto no_sync = sharded->no_sync(); loss.backward(); }
  class NoSync {
   public:
    explicit NoSync(ShardedModule& sharded);
    ~NoSync();
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;

   private:
    std::shared_ptr<engine::Engine> engine_;
    bool before_;
  };
  [[nodiscard]] NoSync no_sync() { return NoSync(*this); }
  // Sets one of the BackwardOptions for all units until it is set again, under its name in FSDP2. The first two end
  // what was set for single modules; that of gradient synchronization also ends what was set for their all-reduces.
  void set_requires_gradient_sync(bool on);
  void set_requires_all_reduce(bool on);
  void set_is_last_backward(bool on);
  // Sets one for the units made for `module` itself and, with `recurse`, for modules below it. A unit without
  // synchronization adds up its gradients unsharded, while others are reduced in the same backward; once it is set
  // again, the next backward reduces the sum. The first function sets the second as well. no_sync(), and false in the
  // options of backward(), hold for all units all the same. With Options::auto_units, units belong to the module that
  // fully_shard was called on. An error in these two functions and in those below that take a module: if there are no
  // such units, if auto_units has yet to make them, and while backward runs. All ranks must make the same call; a
  // difference is found when the units are reduced or gathered next.
  void set_requires_gradient_sync(const torch::nn::Module& module, bool on, bool recurse = true);
  void set_requires_all_reduce(const torch::nn::Module& module, bool on, bool recurse = true);
  BackwardOptions backward_options() const;
  // Runs loss.backward() with these options for this call only. Where they say true, a unit follows what was set for
  // its module, if anything was.
  void backward(const at::Tensor& loss, const BackwardOptions& options, bool retain_graph = false);
  // Runs `body`, which runs backward passes, with these options.
  void with_backward_options(const BackwardOptions& options, const std::function<void()>& body);
  // Reduces the gradients that backward passes without synchronization have added up, as if the last of them had
  // synchronized. Throws within no_sync() and while backward runs. Collective.
  void reduce_gradients();
  // Waits for reductions that a backward with is_last_backward = false left in flight.
  void wait_for_gradients();

  // -- Reductions --

  // Divides gradients by `factor` instead of the number of ranks that contribute. Unset: by that number (the mean). The
  // second form is for the units made for `module` itself; unset: as the first one says. The first one ends all of the
  // second.
  void set_gradient_divide_factor(std::optional<double> factor);
  void set_gradient_divide_factor(const torch::nn::Module& module, std::optional<double> factor);
  // Whether reductions compute the norm of the gradients that they write, for reduced_grad_norm(). Takes effect with
  // the next backward. Off by default. Must be the same on all ranks.
  void set_reductions_see_norm(bool on);

  // -- Gathering and releasing --

  // Keeps the units of these parameters gathered during `body`, so that code that bypasses the dispatcher (data_ptr,
  // numpy, dlpack) may read their memory. Empty list: all units.
  void pin(const std::vector<at::Tensor>& parameters, const std::function<void()>& body);

  // Gathers every unit now, or only the units made for `module` itself (not below it). async_op: issues the gathers and
  // returns. wait() on the handle, or the first operator that needs a unit, then waits for its gather.
  UnshardHandle unshard(bool async_op = false);
  UnshardHandle unshard(const torch::nn::Module& module, bool async_op = false);
  // Releases every unit, or the units made for `module` itself. Never fails: units in use stay gathered.
  void reshard();
  void reshard(const torch::nn::Module& module);

  // Changes Options::reshard_after_forward of all units, or of those made for `module` itself and, with `recurse`, for
  // modules below it, from the next forward on. true and N are errors for units of strategies that keep parameters
  // gathered, and N where fully_shard would refuse it. Ranks compare the option when a unit is used next.
  void set_reshard_after_forward(const ReshardAfterForward& reshard);
  void set_reshard_after_forward(const torch::nn::Module& module, const ReshardAfterForward& reshard,
                                 bool recurse = true);
  // false: these units stay gathered when backward has used them, and need no gather in the next forward. A write to
  // the shards, such as an optimizer's step, makes what is gathered stale: the next forward then releases and gathers
  // again. reshard() releases, too. Over shared memory with the flat cut, an optimizer's first write releases. Each
  // such unit has memory of its own. Default: true. Ranks compare the switch when a unit is used next.
  void set_reshard_after_backward(bool on);
  void set_reshard_after_backward(const torch::nn::Module& module, bool on, bool recurse = true);
  // false: backward does not gather the units made for `module` itself ahead of their use, for example those of an
  // embedding, whose gradient does not depend on its weight. An operator that needs one of their parameters in backward
  // still gathers its unit. Default: true. Ranks compare the switch when a unit is used next.
  void set_unshard_in_backward(const torch::nn::Module& module, bool on);

  // When the units made for `module` itself are used in forward (in backward), gathers the units made for each of
  // `modules`, in this order, instead of the units that the execution order predicts; if need be beyond
  // Options::max_gathered_units. An empty list restores the prediction. All ranks must make the same call.
  using ModuleList = std::vector<std::reference_wrapper<const torch::nn::Module>>;
  void set_modules_to_forward_prefetch(const torch::nn::Module& module, const ModuleList& modules);
  void set_modules_to_backward_prefetch(const torch::nn::Module& module, const ModuleList& modules);

  // true: parameters are gathered and used, and gradients reduced, in the dtype of the shards, and buffers return to
  // their own dtypes, for example for an evaluation in full precision. false: dtypes follow the options again. Graphs
  // made before the switch cannot run backward after it. All ranks must make the same call, between steps.
  void set_full_precision(bool on);
  bool full_precision() const;

  // Runs `body`, usually an optimizer's step. Large host tensors that it creates in this thread lie in files below
  // Options::offload_path. Afterwards these tensors and the shards leave resident memory. Without offload_path, it only
  // runs `body`. State that was created earlier stays where it is.
  //   sharded->with_offloaded_memory([&] { optimizer.step(); });
  void with_offloaded_memory(const std::function<void()>& body);
  // Takes shards and state that lie in files out of resident memory now, for example after each part of a long step.
  void page_out() const;

  // Discards gradients that a failed backward left half captured, and gradients accumulated without synchronization,
  // and releases all units. Shards and their gradients stay as they are.
  void reset();

  // Makes the units of Options::auto_units now, from the order seen so far, instead of when the first backward begins:
  // for a model that only infers, or if optimizer state is loaded before the first backward. Does nothing if the units
  // exist already. Collective.
  void cut_units();
  // The order in which the parameters of Options::auto_units were used (AutoUnits::order). Empty before units are made.
  ExecutionOrder execution_order() const;

  // -- Groups of functions that are rarely needed, each behind a handle that may be kept --

  // Hooks that see, change or perform reductions.
  GradientHooks hooks() const { return GradientHooks(engine_); }
  // Reports on units, memory and collectives.
  Diagnostics diagnostics() const { return Diagnostics(engine_); }
  // The recorder of a timeline.
  Tracing tracing() const { return Tracing(engine_); }

  // The engine of the tree that this module belongs to.
  engine::Engine& engine() const;

 private:
  std::shared_ptr<engine::Engine> engine_;
};

}  // namespace fsdp
