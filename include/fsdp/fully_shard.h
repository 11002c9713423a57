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
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/options.h"
#include "fsdp/trace.h"

namespace torch::optim {
class Optimizer;
}

namespace fsdp {

class Engine;
class Unit;

// The part of one original parameter that this rank holds: elements [begin, end) in the order in which the parameter
// lies in memory, which is row-major unless it had another memory format (see strides).
struct ShardSlice {
  std::string fqn;               // original name; the first of them for a shared parameter
  std::vector<int64_t> sizes;    // of the whole parameter
  std::vector<int64_t> strides;  // likewise
  int64_t begin = 0;
  int64_t end = 0;  // begin == end: this rank holds nothing of it
  at::Tensor data;  // 1-D view of the shard, end - begin elements, writable under NoGradGuard
};

struct FullParameterOptions {
  bool rank0_only = false;      // call `visit` on rank 0 only
  bool offload_to_cpu = false;  // hand out copies on the host
};

struct SummonOptions {
  bool recurse = true;      // false: only the unit of the module that was annotated last, the root
  bool writeback = true;    // false: what `body` writes is dropped
  bool rank0_only = false;  // gather for rank 0 only; on the others a touch is an error. Excludes writeback
  // On a device other than the CPU an error: for_each_full_parameter hands out copies on the host.
  bool offload_to_cpu = false;
  // Gradients too are whole, in grad() of the module's parameters and in the dtype of the shards' gradients; with
  // writeback what is written or assigned there goes back to the shards' gradients.
  bool with_grads = false;
};

// A parameter as its owner sees it in update_whole_parameters.
struct WholeParameter {
  std::string fqn;
  at::Tensor value;     // full shape, in the dtype of the shards; to be written in place
  at::Tensor gradient;  // full shape
};

// Gathers under way. Dropping the handle does not cancel them.
class UnshardHandle {
 public:
  UnshardHandle() = default;
  UnshardHandle(std::shared_ptr<Engine> engine, std::vector<Unit*> units)
      : engine_(std::move(engine)), units_(std::move(units)) {}
  // Blocks until the units are gathered; again: does nothing.
  void wait();

 private:
  std::shared_ptr<Engine> engine_;
  std::vector<Unit*> units_;
};

// Counters since fully_shard; what tests and benchmarks look at.
struct EngineStats {
  int64_t units = 0;  // now
  int64_t all_gathers = 0;
  int64_t reduce_scatters = 0;
  int64_t all_reduces = 0;
  int64_t prefetches = 0;         // gathers issued ahead of the first use
  int64_t prefetches_wasted = 0;  // of these, how many were released without a use
  int64_t gathered_bytes = 0;     // held by unsharded buffers now
  int64_t peak_gathered_bytes = 0;
  int64_t gathered_units = 0;  // now, the root and gathers under way included
  int64_t peak_gathered_units = 0;
  int64_t gradient_buffer_bytes = 0;
  int64_t peak_gradient_buffer_bytes = 0;
};

// Bytes on this rank of one kind of memory.
struct MemoryCategory {
  std::string name;
  int64_t current = 0;
  int64_t peak = 0;      // of what was in use at a time
  int64_t reserved = 0;  // at most taken from the allocator for it, in use or not
};

// What backward passes do with gradients. They read it when they begin: when the first of their operators or gradients
// reaches a sharded parameter. Must be the same on all ranks.
struct BackwardOptions {
  // false: gradients are added up on each rank, unsharded and in reduce_dtype, and nothing is communicated (no_sync).
  // Units of SHARD_GRAD_OP and _HYBRID_SHARD_ZERO2 stay gathered after such a backward. The next backward with true
  // reduces the sum.
  bool requires_gradient_sync = true;
  // false: gradients are reduce-scattered in the shard group, added up there, and all-reduced over replicas by the next
  // backward with true. Units that are not sharded take it as requires_gradient_sync = false.
  bool requires_all_reduce = true;
  // false: the end of backward does not wait for the reductions in flight; the next one with true does, or whatever
  // looks at gradients first (grad_norm, clip_grad_norm_, zero_grad, wait_for_gradients).
  bool is_last_backward = true;
};

// The outcome of one reduction, before it is added to the leaves' gradients.
struct ReducedGradient {
  std::string unit;
  std::vector<std::string> fqns;  // of the parameters, in the order in which they lie
  at::Tensor gradient;            // 1-D, laid out like this rank's shard, padding included; may be changed in place
};
using GradientHook = std::function<void(const ReducedGradient& reduced)>;

// A reduction that a hook is to do in place of the engine. Collective: all ranks get the same calls in the same order.
struct ReduceRequest {
  std::string unit;
  at::Tensor unsharded;                 // 1-D, padded: what this rank has captured; may be overwritten
  at::Tensor reduced;                   // 1-D: to be filled with this rank's part of the reduced gradient
  std::shared_ptr<Communicator> shard;  // null when the unit is not sharded: then `reduced` is as large as unsharded
  std::shared_ptr<Communicator> replicate;  // null when there are no replicas
  double scale = 1.0;                       // to multiply the sum over both groups with
};
using CommunicationHook = std::function<void(const ReduceRequest& request)>;

// Called with the leaves of one FlatParameter whose gradients are complete.
using UnitReducedHook = std::function<void(const std::string& unit, const std::vector<at::Tensor>& leaves)>;

// A module whose parameters are sharded. Obtained from fully_shard; a handle of an inner module stays valid after an
// outer one was annotated and then speaks for the whole tree. The handle need not be kept: parameters hold what they
// need.
//
// Threads: one thread trains; inference from several threads is safe on one rank.
class ShardedModule {
 public:
  explicit ShardedModule(std::shared_ptr<Engine> engine) : engine_(std::move(engine)) {}

  // The leaves to build an optimizer on, in unit order. Not the module's own parameters: an optimizer built on those
  // gets an error at its first step.
  std::vector<at::Tensor> parameters() const;
  // The same with names: original FQNs (use_orig_params), or "<unit>.flat_param" ("<unit>.flat_param_2", …).
  std::vector<std::pair<std::string, at::Tensor>> named_parameters() const;
  // What this rank holds of each original parameter, for either use_orig_params. Touches no other rank.
  std::vector<ShardSlice> shard_slices() const;

  // Clears the gradients of the shards.
  void zero_grad(bool set_to_none = true);

  // The norm of the gradients over all ranks, as a scalar fp64 tensor on the CPU. norm_type may be infinity. Call it on
  // all ranks. error_if_nonfinite: throw (on all ranks) when the norm is not finite.
  at::Tensor grad_norm(double norm_type = 2.0, bool error_if_nonfinite = false);

  // grad_norm() of gradients that nobody has written since backward reduced them, without reading them again, where
  // set_reductions_see_norm(true): the passes that sum them over the ranks see their squares. Gradients of which no
  // such pass is known are read: those that are added to earlier ones, behind a gradient hook, over NCCL, and those of
  // which version counters tell that they were written. A write that counts no version (through data_ptr(), by a
  // collective of one's own, by ShardedGradScaler::unscale_) is not in it. Call it on all ranks.
  at::Tensor reduced_grad_norm(bool error_if_nonfinite = false);

  // Scales the gradients so that their norm over all ranks is at most max_norm; returns the norm before, grad_norm().
  // Call it on all ranks.
  at::Tensor clip_grad_norm_(double max_norm, double norm_type = 2.0, bool error_if_nonfinite = false);

  // -- Whole parameters --

  // Gathers one unit after the other and calls `visit` with each of its parameters, whole, in the dtype of the shards.
  // A tensor is valid during its call only. Collective: all ranks take part; `visit` may do nothing on some.
  void for_each_full_parameter(const std::function<void(const std::string& fqn, const at::Tensor& full)>& visit,
                               const FullParameterOptions& options = {});

  // Runs `body` while the module's parameters are gathered and may be written; what was written (only the elements that
  // changed) goes back to the shards afterwards, but not after an exception. All ranks must write the same values, or
  // at least each the part that it holds. Collective.
  void summon_full_params(const SummonOptions& options, const std::function<void()>& body);
  // The same for all units, without gradients.
  void with_full_params(const std::function<void()>& body, bool writeback = true);

  // For optimizers that need whole parameters (Muon, Shampoo, Adafactor, …): gathers one unit after the other, values
  // and gradients, and calls `update` with each parameter that has a gradient, on one rank of the shard group: its
  // owner, always the same one, so that optimizer state is spread over ranks as well. What `update` writes to `value`
  // goes to the shards. Units that are not sharded are updated on every rank alike. Collective: all ranks call it
  // together.
  void update_whole_parameters(const std::function<void(const WholeParameter& parameter)>& update);

  // Throws, naming it, when the optimizer's result on shards would differ from that on whole parameters: torch::optim's
  // LBFGS, whose inner products run over all parameters. The others of torch::optim work element by element.
  static void check_optimizer(const torch::optim::Optimizer& optimizer);

  // -- Gradient accumulation --

  // Backward passes until the returned scope ends do not communicate (BackwardOptions::requires_gradient_sync).
  //   { auto no_sync = sharded->no_sync(); loss.backward(); }
  class NoSync {
   public:
    explicit NoSync(ShardedModule& sharded);
    ~NoSync();
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;

   private:
    std::shared_ptr<Engine> engine_;
    bool before_;
  };
  [[nodiscard]] NoSync no_sync() { return NoSync(*this); }
  // The same switches until they are set again, under the names of FSDP2.
  void set_requires_gradient_sync(bool on);
  void set_requires_all_reduce(bool on);
  void set_is_last_backward(bool on);
  BackwardOptions backward_options() const;
  // loss.backward() with options for this call alone.
  void backward(const at::Tensor& loss, const BackwardOptions& options, bool retain_graph = false);
  // Waits for reductions that a backward with is_last_backward = false left in flight.
  void wait_for_gradients();

  // -- Reductions --

  // Gradients are divided by this instead of by the number of ranks that contribute (their mean). Unset: the number.
  void set_gradient_divide_factor(std::optional<double> factor);
  // Whether reductions see the norm of what they write, for reduced_grad_norm(): from the next backward on. No by
  // default. Must be the same on all ranks.
  void set_reductions_see_norm(bool on);
  // Called on each reduced gradient, in the order of reduction. An empty function: none.
  void set_gradient_hook(GradientHook hook);
  // Does the communication of reductions itself: compression, say. Runs at the point where the engine would issue its
  // own, and blocks backward. Excludes requires_all_reduce = false. An empty function: none.
  void set_communication_hook(CommunicationHook hook);
  // Called inside backward as soon as a FlatParameter's gradients are reduced: step an optimizer over these leaves
  // there and clear their gradients, so that gradients of several units never wait side by side. A parameter that gets
  // another gradient after that in the same backward is an error.
  void set_unit_reduced_hook(UnitReducedHook hook);

  // Keeps the units of these parameters gathered during `body`, so that their raw memory may be read by code that
  // bypasses the dispatcher (data_ptr, numpy, dlpack). Empty list: all units.
  void pin(const std::vector<at::Tensor>& parameters, const std::function<void()>& body);

  // Gathers every unit now, or only those that were made for `module` itself (not below it). async_op: issues the
  // gathers and returns; wait() on the handle, or the first operator that needs a unit, waits for its gather.
  UnshardHandle unshard(bool async_op = false);
  UnshardHandle unshard(const torch::nn::Module& module, bool async_op = false);
  // Releases every unit, or those made for `module` itself. Never fails: units in use are left gathered.
  void reshard();
  void reshard(const torch::nn::Module& module);

  // When the units made for `module` itself are used in forward (in backward), gathers those made for each of
  // `modules`, in this order, instead of what the execution order makes expect; beyond Options::max_gathered_units, if
  // need be. An empty list: again what is expected. All ranks must do the same.
  using ModuleList = std::vector<std::reference_wrapper<const torch::nn::Module>>;
  void set_modules_to_forward_prefetch(const torch::nn::Module& module, const ModuleList& modules);
  void set_modules_to_backward_prefetch(const torch::nn::Module& module, const ModuleList& modules);

  // true: parameters are gathered and used, and gradients reduced, in the dtype of the shards, and buffers return to
  // their own dtypes: an evaluation in full precision, say. false: again as the options say. Graphs made before cannot
  // be run backward afterwards. All ranks must do the same, between steps.
  void set_full_precision(bool on);
  bool full_precision() const;

  // Runs `body`, an optimizer's step, so that large host tensors that it makes in this thread lie in files below
  // Options::offload_path; then takes them, and the shards, out of resident memory. Without offload_path: only runs
  // `body`. State that was made before stays where it is.
  //   sharded->with_offloaded_memory([&] { optimizer.step(); });
  void with_offloaded_memory(const std::function<void()>& body);
  // Takes shards and state that lie in files out of resident memory now: inside a long step, after each part of it.
  void page_out() const;

  // Forgets gradients that a failed backward left half captured. Shards and their gradients stay as they are.
  void reset();

  // Records from now on what happens when, and how much memory is in use; see trace.h. `more`: what the caller holds
  // beside, its optimizer's state, say; asked in the threads that use the model, until the trace is stopped. It must
  // not use parameters. stop_trace() ends it and returns what was recorded by this rank.
  void start_trace(std::function<std::vector<MemoryCategory>()> more = {});
  Trace stop_trace();
  // A range of the user's in the trace, until the returned scope ends: "forward", "optimizer". Nothing while no trace
  // is recorded.
  class TraceScope {
   public:
    TraceScope(ShardedModule& sharded, std::string name);
    ~TraceScope();
    TraceScope(const TraceScope&) = delete;
    TraceScope& operator=(const TraceScope&) = delete;

   private:
    std::shared_ptr<Engine> engine_;
    std::string name_;
    int64_t begin_;
  };
  [[nodiscard]] TraceScope trace_range(std::string name) { return {*this, std::move(name)}; }

  // Makes the units that Options::auto_units asks for now, from the order seen so far, instead of when the first
  // backward begins: for a model that only infers, or where optimizer state is loaded before the first backward. Does
  // nothing when they are made. Collective.
  void cut_units();
  // In which order the parameters of Options::auto_units were used (AutoUnits::order); empty before units are made.
  ExecutionOrder execution_order() const;

  // A table of units: FQNs, shapes, sizes, padding, and which rank owns which part.
  std::string describe_units() const;
  EngineStats stats() const;
  // What the engine holds on this rank, now and at most so far. Memory of activations, of the optimizer, and what the
  // communicator keeps for itself is not in it.
  std::vector<MemoryCategory> memory() const;
  // The same as a table, with what the caller knows of below: its optimizer's state, say.
  std::string memory_summary(const std::vector<MemoryCategory>& more = {}) const;

  // When `error` says that memory could not be allocated: what it says, memory_summary(more), and the gathered units.
  // Otherwise: what it says. Errors of the engine's own allocations and of operators on
  // sharded parameters say it already; this is for whatever else a step allocates:
  //   catch (const std::exception& error) { throw std::runtime_error(sharded->explain_out_of_memory(error)); }
  std::string explain_out_of_memory(const std::exception& error, const std::vector<MemoryCategory>& more = {}) const;

  // This rank's last 64 collectives in all groups of the tree, oldest first, a line each:
  //   "rank 1, #41 reduce-scatter of 'layer.3' (reduce, generation 7), 1024 elements of Float: waited for since 12.3 s"
  // Threads: safe; another thread may ask while this one waits.
  std::string collective_log() const;

  // Compares the plan (units, FQNs, shapes, dtypes, options, world size) over the ranks; a difference is an error on
  // all of them that names ranks and the first difference. Runs by itself before the first gather.
  void verify_plan();

  // The engine of the tree that this module is part of.
  Engine& engine() const;

 private:
  std::shared_ptr<Engine> engine_;
};

// Makes a unit of all parameters below `module` that no unit has taken, after the modules that options.auto_wrap_policy
// picks below it have become units. Annotate bottom-up. Shared parameters go to the unit of the lowest common ancestor
// of the modules that hold them. Errors list the FQNs concerned: a module annotated twice, a parameter in two units, a
// unit without parameters (when nothing below it is sharded either), parameters on several devices.
//
// Parameters may be whole on any device, deferred (deferred_init.h), or on the meta device; a unit's are given to the
// shards before the next unit's are looked at. Meta parameters are given uninitialised shards on options.device: fill
// them through shard_slices(), or set Options::param_init_fn or sync_module_states. Meta buffers are given
// uninitialised memory there, to be filled on every rank when fully_shard is done.
std::shared_ptr<ShardedModule> fully_shard(torch::nn::Module& module, const Options& options);
// Several modules as one unit (siblings, without their parent).
std::shared_ptr<ShardedModule> fully_shard(const std::vector<std::shared_ptr<torch::nn::Module>>& modules,
                                           const Options& options);
template <typename Impl>
std::shared_ptr<ShardedModule> fully_shard(const torch::nn::ModuleHolder<Impl>& holder, const Options& options) {
  return fully_shard(static_cast<torch::nn::Module&>(*holder.ptr()), options);
}

}  // namespace fsdp
