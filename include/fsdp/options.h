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
#include "fsdp/shard_cut.h"
#include "fsdp/tensor_parallel.h"
#include "fsdp/wrap_policy.h"

namespace torch::nn {
class Module;
}

namespace fsdp {

// What is sharded, and when parameters are gathered (FSDP paper, section 3.2; ZeRO stages in brackets).
enum class ShardingStrategy : uint8_t {
  // Parameters, gradients and optimizer state are sharded. A unit is gathered for forward, released, and gathered again
  // for backward (ZeRO-3).
  kFullShard,
  // Like kFullShard, but a unit stays gathered from forward to backward (ZeRO-2 with sharded parameters outside).
  kShardGradOp,
  // Every rank holds everything; flat gradients are all-reduced (plain data parallelism, DDP).
  kNoShard,
  // kFullShard inside each shard group of a 2-D mesh. Gradients that were reduce-scattered there are all-reduced over
  // the replicate group while backward continues with the next unit.
  kHybridShard,
  // kShardGradOp inside each shard group, otherwise like kHybridShard (_HYBRID_SHARD_ZERO2).
  kHybridShardZero2,
};
const char* to_string(ShardingStrategy strategy);
// Whether units of this strategy need a 2-D mesh.
constexpr bool is_hybrid(ShardingStrategy strategy) {
  return strategy == ShardingStrategy::kHybridShard || strategy == ShardingStrategy::kHybridShardZero2;
}
// Whether units of this strategy are released after forward, unless Options::reshard_after_forward overrides it.
constexpr bool reshards_after_forward(ShardingStrategy strategy) {
  return strategy == ShardingStrategy::kFullShard || strategy == ShardingStrategy::kHybridShard;
}

// Whether a unit is released after forward: no, yes, or to a smaller group of N ranks (FSDP2's integer). In the last
// case, ranks [k N, (k + 1) N) of the shard group together keep one copy of the gathered parameters in the compute
// dtype, so that backward gathers among N ranks only.
class ReshardAfterForward {
 public:
  ReshardAfterForward(bool on) : group_size_(on ? 1 : 0) {}  // NOLINT: true, false and N are meant to convert
  ReshardAfterForward(int group_size) : group_size_(group_size), is_group_(true) {}

  bool on() const { return group_size_ != 0; }
  // N. Unset if the unit is released to the whole shard group, or not released.
  std::optional<int> group_size() const { return is_group_ ? std::optional<int>(group_size_) : std::nullopt; }
  bool operator==(const ReshardAfterForward& other) const {
    return group_size_ == other.group_size_ && is_group_ == other.is_group_;
  }

 private:
  int group_size_;
  bool is_group_ = false;
};

struct Options {
  // -- Options that must be the same for every unit of one tree. A difference is an error that names both units. --

  // The communicator of all ranks. Required, unless `mesh` is given.
  std::shared_ptr<Communicator> communicator;
  // In place of `communicator`, a mesh (mesh.h, device_mesh.h). For hybrid strategies one with a shard group and a
  // replicate group, whose `world` may be missing if all units are hybrid. Without such groups, hybrid units use
  // make_mesh_of_hosts(world), made once for each world.
  std::optional<ProcessMesh> mesh;
  // Tensor parallelism: how weights are split over ranks that are not data-parallel to each other. `mesh` is then the
  // mesh of the data-parallel ranks. Unset: nothing is split. The group must be the same for every unit of one tree;
  // each call's plan names modules below the module of that call.
  std::optional<TensorParallelOptions> tensor_parallel;
  // Whether the optimizer gets one leaf for each original parameter (a 1-D view of the part that this rank holds,
  // possibly empty, under the original FQN) or one leaf for each FlatParameter.
  bool use_orig_params = true;
  // How a unit's parameters are dealt to the ranks of its shard group: shard_cut.h. Checkpoints of both cuts load each
  // other, except local state dicts (state_dict.h).
  ShardCut shard_cut = ShardCut::kFlat;
  // With ShardCut::kRows: returns the dimension that is cut of a parameter, 0 … dim() - 1, as shard_placement_fn of
  // PyTorch's FSDP2. Must return the same on all ranks. Whole parameters that are cut in another dimension than the
  // first one have strides with which that dimension is the outermost: they are not contiguous. Unset: the first
  // dimension.
  std::function<int64_t(const at::Tensor& parameter)> shard_dim;
  // Device on which parameters are gathered and used, and on which shards live unless they are offloaded. Buffers in
  // host memory move there; ignored parameters and modules stay where they are. Unset: the device of the parameters,
  // which must then not be meta.
  std::optional<c10::Device> device;

  // -- Offload: where shards and their gradients live, and therefore where the optimizer works. --

  // true: in host memory, which is pinned, so that copies to and from the device overlap with computation. The end of
  // backward waits until the gradients have arrived there. No effect on the CPU, where shards are in host memory
  // already.
  bool cpu_offload = false;
  // A folder, preferably on a local disk, created if it is missing. Shards lie in memory-mapped files there, and so
  // does the optimizer state that is created inside ShardedModule::with_offloaded_memory; gradients are in host memory.
  // The files have no names, and their space is free again when the process ends. A unit's pages leave the process's
  // resident memory after it was gathered; the operating system writes them to the disk when it needs the memory. Works
  // with any device and includes cpu_offload. Unset: no files. Errors name the folder: it cannot be created or written,
  // or its disk is full.
  std::optional<std::string> offload_path;

  // -- Overlap of communication with computation. Gathers are issued ahead according to the execution order seen
  // before. If the order changes, a wrong unit is gathered and released again, which costs time but does not affect
  // results. --

  BackwardPrefetch backward_prefetch = BackwardPrefetch::kPre;
  // Whether the gather of the unit that forward is expected to need next is issued before the current unit's forward.
  bool forward_prefetch = true;
  // Whether at most max_gathered_units units are gathered or being gathered at a time. The unit in use counts; the
  // root, other ancestors of the unit in use, and units that stay gathered after forward do not. false: gathers are
  // issued as far ahead as the order is known.
  bool limit_all_gathers = true;
  int64_t max_gathered_units = 2;
  // Whether gathers and reductions share one communicator, in which each operation waits for the operations issued
  // before it, instead of having two with separate connections.
  bool one_communicator = false;
  // On a device with streams: whether the streams of gathers and reductions have a higher priority than others, so that
  // their small kernels start before kernels of the computation that waits for them.
  bool high_priority_streams = true;

  // Whether the memory of gradients and gathered parameters stays allocated, so that no step after the first asks the
  // allocator for it. false: gathered parameters are freed when they are released. Gradients are held as they were
  // captured until their unit is reduced. Buffers of reductions are freed after the reduction. The shards' gradients
  // are freed in ShardedModule::zero_grad, or at the beginning of backward for leaves without gradients. Gradients are
  // thus allocated while activations and parameters are freed, as in PyTorch, and the peak is lower.
  bool keep_memory = false;

  // How ranks that diverge or do not arrive are detected.
  DebugOptions debug{};

  // -- Options that may differ from unit to unit. --

  ShardingStrategy sharding_strategy = ShardingStrategy::kFullShard;
  // Whether a unit is released after forward and gathered again for backward. Unset: as the strategy says, but false
  // for the root unit. false turns kFullShard into kShardGradOp (kHybridShard into kHybridShardZero2) for these units.
  // true or N is an error for a unit of another strategy. N must divide the size of the shard group, and be neither 1
  // nor that size.
  std::optional<ReshardAfterForward> reshard_after_forward;

  // -- Mixed precision; may differ from unit to unit. Shards, and by default their gradients, keep the dtype of the
  // original parameters. Integer and boolean tensors are never cast. --

  // dtype in which parameters are gathered and used. Unset: the dtype of the parameters. The cast from the shard is
  // fused with the copy into the unsharded buffer.
  std::optional<c10::ScalarType> param_dtype;
  // dtype in which gradients are captured and reduced. Unset: param_dtype.
  std::optional<c10::ScalarType> reduce_dtype;
  // dtype to which fully_shard casts floating-point buffers of the modules. Unset: they stay as they are.
  std::optional<c10::ScalarType> buffer_dtype;
  // Whether the gradients that the optimizer gets stay in reduce_dtype instead of being cast to the dtype of the
  // shards. Only for optimizers that accept such gradients (FusedAdamW does).
  bool keep_low_precision_grads = false;
  // Whether operators that cannot mix dtypes (matrix products, convolutions, recurrent layers, normalisations) get
  // their other floating-point arguments cast to the dtype in which the unit is used. PyTorch casts a module's inputs
  // instead. A normalisation whose weight has a wider dtype than its input returns the input's dtype.
  bool cast_forward_inputs = true;
  // Classes of modules (module_class_name) whose parameters and buffers are used and reduced in full precision, for
  // example normalisations. Their parameters are kept in separate FlatParameters.
  std::vector<std::string> full_precision_classes;

  // -- What is sharded, and its initial values. --

  // Parameters that this call, and calls for modules above, leave as they are: they are not sharded, not reduced, not
  // among the leaves, and not in norms. Their gradients are local to each rank.
  std::vector<at::Tensor> ignored_parameters;
  // Modules below which all parameters are ignored, like ignored_parameters. Their buffers are left alone too.
  std::vector<std::shared_ptr<torch::nn::Module>> ignored_modules;
  // Called, unit by unit, for each module that directly holds parameters without values (meta or deferred ones), after
  // these parameters were given memory, whole and uninitialised. It must initialise them in place, for example with
  // reset_parameters(). Recorded deferred initialisations of these parameters are discarded. Runs without gradients and
  // draws random numbers in the order of units. All ranks must produce the same values, unless sync_module_states is
  // set.
  std::function<void(torch::nn::Module& module)> param_init_fn;
  // Whether all ranks get rank 0's parameters and buffers, unit by unit. Values on other ranks are neither read nor
  // created: param_init_fn is not called there, and deferred initialisations are not replayed. Ignored parameters and
  // buffers are left alone. Collective.
  bool sync_module_states = false;

  // -- Options of one call. --

  // Selects the modules below the annotated one that become units of their own. Default: none.
  WrapPolicy auto_wrap_policy;
  // Makes units from the order in which the model uses its parameters, instead of by a policy; see AutoUnits. Requires
  // use_orig_params, because flat leaves would change with the units.
  std::optional<AutoUnits> auto_units;
};

}  // namespace fsdp
