// FlatParameter: the parameters of a unit that share a dtype and had the same requires_grad, flattened, padded and
// sharded.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "flat/flat_layout.h"
#include "flat/part_of_whole.h"
#include "flat/shard_memory.h"
#include "torch_seams/keyed_storage.h"

namespace fsdp::flat {

// One original parameter. `tensor` is the module's own: a keyed view with the full shape and without memory while
// sharded.
struct ShardedParameter {
  at::Tensor tensor;
  at::Tensor value;  // if defined, the full value to shard instead of `tensor`'s; cleared once sharded
  std::string fqn;   // the first name, under which the optimizer sees the parameter
  std::vector<std::string> other_fqns;  // further names of a shared parameter
  std::vector<int64_t> sizes;
  // Dense; row-major unless the original had another memory format that the cut keeps, or is cut in another dimension
  // than the first one, whose slices ("rows") then lie one after the other.
  std::vector<int64_t> strides;
  int64_t shard_dim = 0;  // the dimension that the cut by rows cuts
  seams::StorageOwnerPtr owner;
  bool requires_grad = false;
  bool full_precision = false;  // used and reduced in the dtype of the shards (Options::full_precision_classes)
  // Under tensor parallelism: the place of this rank's part in the whole parameter. Null if the rank holds all of it.
  std::shared_ptr<const PartOfWhole> part;
  bool shared_by_parts = false;  // SplitStyle::kSharedByParts
  // The owner of the storage that tensor.grad() has after a capture. The engine does not keep it alive: when it is
  // destroyed, the gradient was cleared on the module.
  c10::weak_intrusive_ptr<seams::StorageOwner> sentinel_owner{seams::StorageOwnerPtr()};
  bool sentinel_installed = false;
  std::shared_ptr<void> capture_hook;  // keeps the gradient accumulator alive; null before requires_grad is first set

  // The engine's own storage, which is also the tensor's unless the parameter has left the engine.
  c10::Storage keyed_storage;
  c10::StorageImpl& storage() const { return *keyed_storage.unsafeGetStorageImpl(); }
};

// The dtypes of one FlatParameter.
struct FlatDtypes {
  at::ScalarType shard;     // of shards and the optimizer
  at::ScalarType compute;   // of the unsharded buffer
  at::ScalarType reduce;    // of captured gradients
  at::ScalarType gradient;  // of the shards' gradients
};

// The position of one rank in the group over which a FlatParameter is sharded.
struct ShardPosition {
  int64_t rank = 0;
  int64_t factor = 1;
  ShardCut cut = ShardCut::kFlat;
  // Provides a buffer that all ranks share (MemorySharing::buffer), or an undefined tensor: for shards that lie
  // end to end or, if `transient`, for unsharded parameters. An empty function means that no shared buffers exist. With
  // the cut by rows, only transient buffers are asked for, of which each rank must be able to write any part
  // (MemorySharing::takes_any_part).
  std::function<at::Tensor(int64_t nbytes, bool transient)> shared_buffer = {};
};

class FlatParameter {
 public:
  // Takes over `parameters` (all of one dtype, device and requires_grad): copies this rank's part into a shard in
  // `memory` and turns each tensor into a keyed view without memory, on the compute device. `unit` and the index of the
  // first parameter in the unit are stored in the storages' owners. If the parameters are meta tensors, the shard stays
  // uninitialised.
  FlatParameter(std::vector<ShardedParameter> parameters, const FlatDtypes& dtypes, ShardPosition position,
                const ShardMemory& memory, void* unit, int64_t first_index);

  // Parameters that belonged to other FlatParameters, which must be detached and are not used again. The tensors and
  // leaves stay the same objects.
  struct Moved {
    std::vector<ShardedParameter> parameters;
    std::vector<at::Tensor> leaves;  // original leaves, in the same order
    at::Tensor shard;                // this rank's part of the values, laid out and padded as here
  };
  FlatParameter(Moved moved, const FlatDtypes& dtypes, ShardPosition position, const ShardMemory& memory, void* unit,
                int64_t first_index);
  ~FlatParameter();

  const FlatLayout& layout() const { return layout_; }
  const FlatDtypes& dtypes() const { return dtypes_; }
  const ShardPosition& position() const { return position_; }
  const ShardMemory& memory() const { return memory_; }
  c10::Device compute_device() const { return memory_.compute_device(); }
  // Whether any of its parameters requires a gradient, and how many do.
  bool requires_grad() const { return num_trained_ > 0; }
  int64_t num_trained() const { return num_trained_; }
  // Whether requires_grad of a parameter of the module, or of a leaf, was changed since.
  bool requires_grad_changed() const;
  // Returns the value that was set.
  bool wanted_requires_grad(int64_t parameter) const;
  // Takes the changes over, to the module's parameters and to the leaves of either kind.
  void follow_requires_grad();
  std::vector<ShardedParameter>& parameters() { return parameters_; }
  const std::vector<ShardedParameter>& parameters() const { return parameters_; }

  // Tensor parallelism: whether its parameters are parts, and whether their gradients are added up over the ranks that
  // have the parts. All of its parameters are alike in this.
  bool is_part() const { return !parameters_.empty() && parameters_.front().part; }
  bool is_shared_by_parts() const { return !parameters_.empty() && parameters_.front().shared_by_parts; }

  // This rank's part: 1-D, layout().shard_numel() elements, the padding zero.
  const at::Tensor& shard() const { return shard_; }
  // Returns the part of one parameter in a tensor laid out like the shard.
  at::Tensor slice_of(const at::Tensor& like_shard, int64_t parameter) const;
  ParameterSlice slice(int64_t parameter) const { return layout_.slice(parameter, position_.rank); }
  // Returns a view of one parameter with its full shape in a whole buffer (of any dtype).
  at::Tensor view_in(const at::Tensor& flat, int64_t parameter) const;

  // The optimizer's leaves: one for each parameter, and one for the whole shard. Both kinds share the shard's memory
  // and version counter.
  const std::vector<at::Tensor>& original_leaves() const { return original_leaves_; }
  const at::Tensor& flat_leaf() const { return flat_leaf_; }

  // From now on, the engine sees operators on the shard and its leaves, as it does if they are shared(): for leaves
  // that are going to move.
  void watch_shard(void* unit);

  // Points every parameter at its place in `flat` (padded_numel elements of the compute dtype), which must stay alive
  // and in place until detach().
  void attach(const at::Tensor& flat);
  void detach();
  bool attached() const { return attached_; }

  // Sets the dtypes in which the parameters are gathered, used and reduced from now on. The parameters must be
  // detached. If the compute dtype changes, drops gradient accumulators, and with them the hooks on them.
  void set_dtypes(at::ScalarType compute, at::ScalarType reduce);

  // Returns a gradient for the module's parameter, with the full shape and without memory. It calls `gone` when its
  // last reference is dropped.
  at::Tensor make_gradient_sentinel(int64_t parameter, std::function<void()> gone);

  // Writes unit names and FQNs into the error messages for reads of released memory.
  void name_storages(const std::string& unit_name);

  // The shards of all ranks in memory that the ranks share, laid out like the whole buffer. Undefined if each rank
  // has its shard in memory of its own. Shards that are shared or watched, and all views of them, carry the sharded
  // key, with an owner of kind kShard that names the unit.
  const at::Tensor& shared() const { return shared_; }
  // A buffer shared by all ranks that may serve as the unsharded one. It is either the shards themselves or, if their
  // dtype is not the compute dtype or not all of them lie on one host, a buffer to which each rank writes its part for
  // each gather (publishes()). Undefined if each rank has an unsharded buffer of its own.
  const at::Tensor& shared_unsharded() const;
  bool publishes() const { return !shards_are_whole() && shared_unsharded().defined(); }
  // Whether the shard itself may serve as the unsharded buffer.
  bool shard_is_whole() const { return position_.factor == 1 && dtypes_.shard == dtypes_.compute && !memory_.apart(); }

 private:
  FlatParameter(std::vector<ShardedParameter> parameters, const FlatDtypes& dtypes, ShardPosition position,
                const ShardMemory& memory);
  bool shards_are_whole() const { return shared_.defined() && dtypes_.shard == dtypes_.compute; }
  at::Tensor provide_shared(at::ScalarType dtype, bool transient) const;
  void provide_transient();
  at::Tensor make_shard(void* unit);
  at::Tensor make_slice_of_shared(void* unit);
  at::Tensor make_watched_shard(const at::Tensor& own, const at::Tensor& memory, void* unit);
  void copy_into_shard(int64_t parameter);
  void replace_by_keyed_view(int64_t parameter, void* unit, int64_t index);
  void point_at_new_storage(ShardedParameter& parameter, int64_t position);
  at::Tensor make_keyed_view(int64_t parameter, const seams::StorageOwnerPtr& owner, const std::string& message) const;
  void take_over(int64_t parameter, void* unit, int64_t index);
  at::Tensor make_leaf(const at::Tensor& part, bool requires_grad) const;
  void count_trained();

  std::vector<ShardedParameter> parameters_;
  FlatDtypes dtypes_;
  ShardPosition position_;
  ShardMemory memory_;
  int64_t num_trained_ = 0;
  FlatLayout layout_;
  at::Tensor shard_;
  at::Tensor shared_;
  at::Tensor transient_;                // for unsharded parameters, in the compute dtype; may be undefined
  seams::StorageOwnerPtr shard_owner_;  // of a shard that is shared or watched
  std::vector<at::Tensor> original_leaves_;
  at::Tensor flat_leaf_;
  bool attached_ = false;
  std::string unit_name_;
};

}  // namespace fsdp::flat
