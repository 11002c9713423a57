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

// The part of one original parameter that this rank holds: elements [begin, end) in memory order, which is row-major
// unless the parameter had another memory format (see strides).
struct ShardSlice {
  std::string fqn;               // original name; for a shared parameter, the first one
  std::vector<int64_t> sizes;    // of the whole parameter
  std::vector<int64_t> strides;  // of the whole parameter
  int64_t begin = 0;
  int64_t end = 0;  // begin == end: this rank holds no element of it
  at::Tensor data;  // 1-D view of the shard, end - begin elements, writable under NoGradGuard
};

struct FullParameterOptions {
  bool rank0_only = false;      // call `visit` on rank 0 only
  bool offload_to_cpu = false;  // provide copies on the host
};

struct SummonOptions {
  bool recurse = true;      // false: only the root unit, of the module that was annotated last
  bool writeback = true;    // false: writes of `body` are dropped
  bool rank0_only = false;  // gather for rank 0 only; other ranks get an error if they use one. Excludes writeback
  // An error on devices other than the CPU: there, for_each_full_parameter provides copies on the host.
  bool offload_to_cpu = false;
  // Whether grad() of the module's parameters shows whole gradients, in the dtype of the shards' gradients. With
  // writeback, gradients that are written or assigned there go back to the shards' gradients.
  bool with_grads = false;
};

// A whole parameter, as update_whole_parameters passes it to its owner.
struct WholeParameter {
  std::string fqn;
  at::Tensor value;     // full shape, in the dtype of the shards; `update` writes it in place
  at::Tensor gradient;  // full shape
};

// Gathers in flight. Destroying the handle does not cancel them.
class UnshardHandle {
 public:
  UnshardHandle() = default;
  UnshardHandle(std::shared_ptr<Engine> engine, std::vector<Unit*> units)
      : engine_(std::move(engine)), units_(std::move(units)) {}
  // Blocks until the units are gathered. Further calls do nothing.
  void wait();

 private:
  std::shared_ptr<Engine> engine_;
  std::vector<Unit*> units_;
};

// Counters since fully_shard, for tests and benchmarks.
struct EngineStats {
  int64_t units = 0;  // current number
  int64_t all_gathers = 0;
  int64_t reduce_scatters = 0;
  int64_t all_reduces = 0;
  int64_t prefetches = 0;         // gathers issued ahead of the first use
  int64_t prefetches_wasted = 0;  // prefetched units that were released without a use
  int64_t gathered_bytes = 0;     // current size of unsharded buffers in use
  int64_t peak_gathered_bytes = 0;
  int64_t gathered_units = 0;  // current number, including the root and gathers in flight
  int64_t peak_gathered_units = 0;
  int64_t gradient_buffer_bytes = 0;
  int64_t peak_gradient_buffer_bytes = 0;
};

// Memory of one kind on this rank, in bytes.
struct MemoryCategory {
  std::string name;
  int64_t current = 0;
  int64_t peak = 0;      // largest amount in use at a time
  int64_t reserved = 0;  // largest amount taken from the allocator, in use or not
};

// What backward passes do with gradients. A backward reads these options when it begins: when its first operator or
// gradient reaches a sharded parameter. Must be the same on all ranks.
struct BackwardOptions {
  // false: each rank accumulates gradients unsharded, in reduce_dtype, and communicates nothing (no_sync). Units of
  // SHARD_GRAD_OP and _HYBRID_SHARD_ZERO2 stay gathered after such a backward. The next backward with true reduces the
  // sum.
  bool requires_gradient_sync = true;
  // false: gradients are reduce-scattered in the shard group and accumulated there. The next backward with true
  // all-reduces them over the replicas. For units that are not sharded, it has the same effect as
  // requires_gradient_sync.
  bool requires_all_reduce = true;
  // false: the end of backward does not wait for the reductions in flight. The next backward with true waits for them,
  // and so does every function that needs the gradients (grad_norm, clip_grad_norm_, zero_grad, wait_for_gradients).
  bool is_last_backward = true;
};

// The result of one reduction, before it is added to the leaves' gradients.
struct ReducedGradient {
  std::string unit;
  std::vector<std::string> fqns;  // of the parameters, in memory order
  at::Tensor gradient;            // 1-D, laid out like this rank's shard, padding included; may be changed in place
};
using GradientHook = std::function<void(const ReducedGradient& reduced)>;

// A reduction that a hook performs instead of the engine. Collective: all ranks get the same calls in the same order.
struct ReduceRequest {
  std::string unit;
  at::Tensor unsharded;                 // 1-D, padded: this rank's captured gradients; may be overwritten
  at::Tensor reduced;                   // 1-D: the hook writes this rank's part of the reduced gradient
  std::shared_ptr<Communicator> shard;  // null if the unit is not sharded; `reduced` then has the size of `unsharded`
  std::shared_ptr<Communicator> replicate;  // null if the unit has no replicas
  double scale = 1.0;                       // factor for the sum over both groups
};
using CommunicationHook = std::function<void(const ReduceRequest& request)>;

// Called with the leaves of one FlatParameter once their gradients are complete.
using UnitReducedHook = std::function<void(const std::string& unit, const std::vector<at::Tensor>& leaves)>;

// A module whose parameters are sharded, as returned by fully_shard. A handle of an inner module stays valid after an
// outer module was annotated, and then represents the whole tree. The handle need not be kept: parameters hold what
// they need.
//
// Threads: one thread trains; inference from several threads is safe on one rank.
class ShardedModule {
 public:
  explicit ShardedModule(std::shared_ptr<Engine> engine) : engine_(std::move(engine)) {}

  // The leaves to build an optimizer on, in unit order. These are not the module's own parameters: an optimizer built
  // on the module's parameters gets an error at its first step.
  std::vector<at::Tensor> parameters() const;
  // The leaves with their names: original FQNs (use_orig_params), or "<unit>.flat_param" ("<unit>.flat_param_2", …).
  std::vector<std::pair<std::string, at::Tensor>> named_parameters() const;
  // The part of each original parameter that this rank holds, whether use_orig_params is set or not. Does not
  // communicate.
  std::vector<ShardSlice> shard_slices() const;

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
  // part that it holds. Collective.
  void summon_full_params(const SummonOptions& options, const std::function<void()>& body);
  // Like summon_full_params, for all units and without gradients.
  void with_full_params(const std::function<void()>& body, bool writeback = true);

  // For optimizers that need whole parameters (Muon, Shampoo, Adafactor, …). Gathers the values and gradients of one
  // unit after the other. Calls `update` for each parameter that has a gradient, on one rank of the shard group: its
  // owner. The owner never changes, so that optimizer state is spread over the ranks as well. Values that `update`
  // writes to `value` go to the shards. Units that are not sharded are updated on every rank alike. Collective.
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
    std::shared_ptr<Engine> engine_;
    bool before_;
  };
  [[nodiscard]] NoSync no_sync() { return NoSync(*this); }
  // Sets one of the BackwardOptions until it is set again, under its name in FSDP2.
  void set_requires_gradient_sync(bool on);
  void set_requires_all_reduce(bool on);
  void set_is_last_backward(bool on);
  BackwardOptions backward_options() const;
  // Runs loss.backward() with these options for this call only.
  void backward(const at::Tensor& loss, const BackwardOptions& options, bool retain_graph = false);
  // Waits for reductions that a backward with is_last_backward = false left in flight.
  void wait_for_gradients();

  // -- Reductions --

  // Divides gradients by `factor` instead of the number of ranks that contribute. Unset: by that number (the mean).
  void set_gradient_divide_factor(std::optional<double> factor);
  // Whether reductions compute the norm of the gradients that they write, for reduced_grad_norm(). Takes effect with
  // the next backward. Off by default. Must be the same on all ranks.
  void set_reductions_see_norm(bool on);
  // Sets a hook that is called on each reduced gradient, in the order of reduction. An empty function removes it.
  void set_gradient_hook(GradientHook hook);
  // Sets a hook that performs the communication of reductions itself, for example with compression. It runs where the
  // engine would issue its own collectives, and blocks backward. Excludes requires_all_reduce = false. An empty
  // function removes it.
  void set_communication_hook(CommunicationHook hook);
  // Sets a hook that is called inside backward as soon as the gradients of a FlatParameter are reduced. If it steps an
  // optimizer over these leaves and clears their gradients, the gradients of several units never exist at the same
  // time. A parameter that gets another gradient later in the same backward is an error.
  void set_unit_reduced_hook(UnitReducedHook hook);

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

  // Drops gradients that a failed backward left half captured, and gradients accumulated without synchronization, and
  // releases all units. Shards and their gradients stay as they are.
  void reset();

  // Starts to record a timeline and the memory in use; see trace.h. `more` returns memory that the caller holds in
  // addition, such as the optimizer's state. It is called in the threads that use the model until the trace is stopped,
  // and must not use parameters. stop_trace() ends the trace and returns what this rank recorded.
  void start_trace(std::function<std::vector<MemoryCategory>()> more = {});
  Trace stop_trace();
  // Records a named range of the user ("forward", "optimizer") until the returned scope ends. Does nothing while no
  // trace is recorded.
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

  // Makes the units of Options::auto_units now, from the order seen so far, instead of when the first backward begins:
  // for a model that only infers, or if optimizer state is loaded before the first backward. Does nothing if the units
  // exist already. Collective.
  void cut_units();
  // The order in which the parameters of Options::auto_units were used (AutoUnits::order). Empty before units are made.
  ExecutionOrder execution_order() const;

  // A table of all units: FQNs, shapes, sizes, padding, and the rank that owns each part.
  std::string describe_units() const;
  EngineStats stats() const;
  // Current and peak memory of the engine on this rank. Excludes activations, the optimizer, and memory that the
  // communicator keeps for itself.
  std::vector<MemoryCategory> memory() const;
  // memory() as a table, followed by `more`: categories that the caller knows, such as its optimizer's state.
  std::string memory_summary(const std::vector<MemoryCategory>& more = {}) const;

  // The message of `error`. For an out-of-memory error, memory_summary(more) and the gathered units are appended.
  // Errors of the engine's own allocations and of operators on sharded parameters contain them already; use this for
  // other allocations of a step:
  //   catch (const std::exception& error) { throw std::runtime_error(sharded->explain_out_of_memory(error)); }
  std::string explain_out_of_memory(const std::exception& error, const std::vector<MemoryCategory>& more = {}) const;

  // This rank's last 64 collectives in all groups of the tree, oldest first, one on each line:
  //   "rank 1, #41 reduce-scatter of 'layer.3' (reduce, generation 7), 1024 elements of Float: waited for since 12.3 s"
  // Threads: safe; another thread may call it while this one waits.
  std::string collective_log() const;

  // Compares how the ranks shard (units, FQNs, shapes, dtypes, options, world size). A difference is an error on
  // all ranks, which names the ranks and the first difference. Runs automatically before the first gather.
  void verify_sharding();

  // The engine of the tree that this module belongs to.
  Engine& engine() const;

 private:
  std::shared_ptr<Engine> engine_;
};

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
