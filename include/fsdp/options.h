// Options of fully_shard and FullyShardedDataParallel.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fsdp/auto_units.h"
#include "fsdp/backward_prefetch.h"
#include "fsdp/communicator.h"
#include "fsdp/debug_options.h"
#include "fsdp/mesh.h"
#include "fsdp/wrap_policy.h"

namespace torch::nn {
class Module;
}

namespace fsdp {

// What is sharded, and when parameters are gathered (FSDP paper, section 3.2; ZeRO stages in brackets).
enum class ShardingStrategy : uint8_t {
  // Parameters, gradients and optimizer state are sharded; a unit is gathered for forward, released, and gathered
  // again for backward (ZeRO-3).
  kFullShard,
  // As kFullShard, but a unit stays gathered from forward to backward (ZeRO-2 with sharded parameters outside).
  kShardGradOp,
  // Every rank holds everything; flat gradients are all-reduced (plain data parallelism, DDP).
  kNoShard,
  // kFullShard inside each shard group of a 2-D mesh; what is reduce-scattered there is all-reduced over the replicate
  // group, while backward goes on with the next unit.
  kHybridShard,
  // The same with kShardGradOp (_HYBRID_SHARD_ZERO2).
  kHybridShardZero2,
};
const char* to_string(ShardingStrategy strategy);
// Whether units of this strategy live on a 2-D mesh.
constexpr bool is_hybrid(ShardingStrategy strategy) {
  return strategy == ShardingStrategy::kHybridShard || strategy == ShardingStrategy::kHybridShardZero2;
}
// Whether they are released after forward, unless Options::reshard_after_forward says otherwise.
constexpr bool reshards_after_forward(ShardingStrategy strategy) {
  return strategy == ShardingStrategy::kFullShard || strategy == ShardingStrategy::kHybridShard;
}

// Whether a unit is released after forward: no, yes, or to a smaller group, of N ranks (FSDP2's integer): ranks
// [k N, (k + 1) N) of the shard group then hold one copy of the gathered parameters together, in the compute dtype, so
// that backward gathers among N ranks only.
class ReshardAfterForward {
 public:
  ReshardAfterForward(bool on) : group_size_(on ? 1 : 0) {}  // NOLINT: true, false and N are meant to convert
  ReshardAfterForward(int group_size) : group_size_(group_size), is_group_(true) {}

  bool on() const { return group_size_ != 0; }
  // N; unset when released to the whole shard group, or not at all.
  std::optional<int> group_size() const { return is_group_ ? std::optional<int>(group_size_) : std::nullopt; }
  bool operator==(const ReshardAfterForward&) const = default;

 private:
  int group_size_;
  bool is_group_ = false;
};

struct Options {
  // -- Options that must be the same for every unit of one tree; a difference is an error that names both units. --

  // All ranks. Required, unless `mesh` is given.
  std::shared_ptr<Communicator> communicator;
  // For hybrid strategies: a shard group and a replicate group (mesh.h). Its `world` may be missing when all units are
  // hybrid. Unset: hybrid units take make_mesh_of_hosts(communicator), made once for each communicator.
  std::optional<ProcessMesh> mesh;
  // Whether the optimizer sees one leaf for each original parameter (a 1-D view of the part that this rank holds,
  // possibly empty, under the original FQN) or one leaf for each FlatParameter.
  bool use_orig_params = true;
  // Where parameters are gathered and used, and where shards live unless they are offloaded. Buffers that are on the
  // host move there; ignored parts stay where they are. Unset: the device of the parameters, which must then not be
  // meta.
  std::optional<c10::Device> device;

  // -- Offload: where shards and their gradients live, and so where the optimizer works. --

  // true: in host memory, which is pinned, so that copies to and from the device run beside computation. The end of
  // backward waits until the gradients are there. On the CPU shards are in host memory already: it changes nothing.
  bool cpu_offload = false;
  // A folder, on a local disk best, made where it is missing: shards lie in files there, mapped into memory (gradients
  // in host memory), and so does the optimizer state that is made inside ShardedModule::with_offloaded_memory. The
  // files have no names, and their space is free again when the process ends. A unit's pages leave the process's
  // resident memory when it was gathered; the system writes them to the disk when it wants the memory. With any device;
  // includes cpu_offload. Unset: no files. Errors name the folder: it cannot be made or written, or its disk is full.
  std::optional<std::string> offload_path;

  // -- Overlap of communication with computation. Gathers are issued ahead by the execution order that was seen before;
  // where the order changes, the wrong unit is gathered and released again, which costs time and nothing else. --

  BackwardPrefetch backward_prefetch = BackwardPrefetch::kPre;
  // Whether the gather of the unit expected next in forward is issued before this unit's forward.
  bool forward_prefetch = true;
  // Whether at most max_gathered_units units are gathered or being gathered at a time, the one in use included, but not
  // the root and other ancestors of the one in use, nor units that stay gathered after forward. false: gathers are
  // issued as far ahead as the order is known.
  bool limit_all_gathers = true;
  int64_t max_gathered_units = 2;
  // Whether gathers and reductions go through one communicator, where each waits behind what was issued before, instead
  // of two with connections of their own.
  bool one_communicator = false;
  // On a device with streams: whether the streams of gathers and reductions have a higher priority than others, so that
  // their kernels, which are small, start before those of the computation that waits for them.
  bool high_priority_streams = true;

  // Whether the memory of gradients and gathered parameters stays, so that no step after the first asks the allocator
  // for it. false: gathered parameters give theirs back when they are released, gradients are held as they come until
  // their unit is reduced, buffers in which they are reduced are given back behind the reduction, and the shards'
  // gradients in ShardedModule::zero_grad, or at the beginning of backward for leaves without gradients. So gradients
  // come when activations and parameters go, as in PyTorch, and the peak is lower.
  bool keep_memory = false;

  // How ranks that diverge or do not come are found.
  DebugOptions debug{};

  // -- Options that may differ from unit to unit. --

  ShardingStrategy sharding_strategy = ShardingStrategy::kFullShard;
  // Whether a unit is released after forward and gathered again for backward. Unset: as the strategy says, and false
  // for the root unit. false turns kFullShard into kShardGradOp (kHybridShard into kHybridShardZero2) for these units;
  // true or N for a unit of another strategy is an error. N must divide the size of the shard group and be neither 1
  // nor the whole of it.
  std::optional<ReshardAfterForward> reshard_after_forward;

  // -- Mixed precision; may differ from unit to unit. Shards, and by default their gradients, keep the dtype of the
  // original parameters; integer and boolean tensors are never cast. --

  // dtype in which parameters are gathered and used. Unset: the dtype of the parameters. The cast from the shard is
  // fused with the copy into the unsharded buffer.
  std::optional<c10::ScalarType> param_dtype;
  // dtype in which gradients are captured and reduced. Unset: param_dtype.
  std::optional<c10::ScalarType> reduce_dtype;
  // dtype to which floating-point buffers of the modules are cast by fully_shard. Unset: they stay.
  std::optional<c10::ScalarType> buffer_dtype;
  // Whether the gradients that the optimizer sees stay in reduce_dtype instead of the dtype of the shards: for
  // optimizers that take them so (FusedAdamW does).
  bool keep_low_precision_grads = false;
  // Whether operators that cannot mix dtypes (matrix products, convolutions, recurrent layers, normalisations) get
  // their other floating-point arguments cast to the dtype in which the unit is used, where PyTorch casts a module's
  // inputs. A normalisation whose weight is wider than its input returns the input's dtype.
  bool cast_forward_inputs = true;
  // Classes of modules (module_class_name) whose parameters and buffers are used and reduced in full precision:
  // normalisations, say. They are kept in FlatParameters of their own.
  std::vector<std::string> full_precision_classes;

  // -- What is sharded, and which values it begins with. --

  // Parameters that this call, and calls for modules above, leave as they are: not sharded, not reduced, not among the
  // leaves, not in norms. Gradients are this rank's own.
  std::vector<at::Tensor> ignored_parameters;
  // The same for all parameters below these modules; their buffers are left alone too.
  std::vector<std::shared_ptr<torch::nn::Module>> ignored_modules;
  // Called, unit by unit, for each module that itself holds parameters which have no values (meta or deferred ones),
  // after these were given memory, whole and uninitialised: is to initialise them in place, with reset_parameters(),
  // say. What a deferred initialisation has recorded for them is dropped. Runs without gradients, and draws in the
  // order of units; all ranks must make the same values, unless sync_module_states.
  std::function<void(torch::nn::Module& module)> param_init_fn;
  // Whether rank 0's parameters and buffers are given to all ranks, unit by unit. On other ranks values are not looked
  // at, nor made: param_init_fn is not called there, and deferred initialisations are not replayed. Ignored ones are
  // left alone. Collective.
  bool sync_module_states = false;

  // -- Options of one call. --

  // Which modules below the annotated one become units of their own. Default: none.
  WrapPolicy auto_wrap_policy;
  // Units from the order in which the model uses its parameters, in place of a policy; see AutoUnits. Needs
  // use_orig_params, as flat leaves would change with the units.
  std::optional<AutoUnits> auto_units;
};

}  // namespace fsdp
