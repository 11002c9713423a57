// A unit: parameters that are gathered and released together.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/stream_order.h"
#include "base/transitions.h"
#include "engine/buffer_pool.h"
#include "engine/leaf_companions.h"
#include "engine/reduction.h"
#include "engine/shard_groups.h"
#include "engine/unit_state.h"
#include "flat/flat_parameter.h"
#include "fsdp/communicator.h"
#include "fsdp/options.h"
#include "schedule/scheduled_unit.h"

namespace fsdp {

class Engine;

// Options of one unit, resolved.
struct UnitOptions {
  ShardingStrategy strategy = ShardingStrategy::kFullShard;
  std::optional<ReshardAfterForward> reshard_after_forward;
  std::optional<at::ScalarType> param_dtype;
  std::optional<at::ScalarType> reduce_dtype;
  bool keep_low_precision_grads = false;
  bool cast_forward_inputs = true;
  bool operator==(const UnitOptions&) const = default;
};

// A module that a unit was made for: its FQN ("" for the one that fully_shard was called on), and what identifies it.
struct AnnotatedModule {
  std::string fqn;
  const void* identity;
};

// What a unit was made for: a module, or siblings; or, by their order (Options::auto_units), parameters below a module.
struct UnitOrigin {
  std::vector<AnnotatedModule> modules;
  bool automatic = false;
};

namespace schedule {
class UseRecord;
}

// Threads: `mutex` guards gathering, releasing, pins and captures of the unit (rule R3: pin and gather, unpin and
// release are each one critical section).
class Unit : public schedule::ScheduledUnit {
 public:
  Unit(Engine& engine, UnitOrigin origin, const UnitOptions& options);
  // Adds a FlatParameter; after the last one, name_it().
  void add(std::vector<ShardedParameter> parameters);
  void add(FlatParameter::Moved parameters);
  void name_it();
  // After its parameters have moved to other units: has none any more. Handles may still refer to it.
  void retire(BufferPool& pool);

  // -- identity --
  const std::string& name() const { return name_; }
  const std::vector<AnnotatedModule>& modules() const { return origin_.modules; }
  const UnitOptions& options() const { return options_; }
  const ShardGroups& groups() const { return groups_; }
  void set_reduce_group(std::shared_ptr<Communicator> group) { groups_.reduce = std::move(group); }
  // Whether any of its parameters gets gradients.
  bool trains() const;
  // Gives modules and parameters the names that they have below a new root: `module_fqns` in the order of modules(),
  // `parameter_fqns` by the identity of the tensor, the first name first.
  void rename(const std::vector<std::string>& module_fqns,
              const std::function<std::vector<std::string>(const at::Tensor&)>& parameter_fqns);
  // "<name>.flat_param", "<name>.flat_param_2", …
  std::string flat_name(size_t index) const;
  // "rank 1: unit 'layers.0'"
  std::string where() const;

  std::vector<std::unique_ptr<FlatParameter>>& flat_parameters() { return flat_parameters_; }
  const std::vector<std::unique_ptr<FlatParameter>>& flat_parameters() const { return flat_parameters_; }
  FlatGradient* gradient(size_t flat) { return gradients_.at(flat).get(); }  // null for a frozen one
  // Whether this backward has captured gradients that are not being reduced yet; and, of all its parameters that get
  // any.
  bool captures() const;
  bool has_all_gradients() const;
  bool has_frozen() const;
  struct Place {
    FlatParameter& flat;
    FlatGradient* gradient;
    int64_t parameter;  // within flat
  };
  // The parameter with this index in the unit.
  Place place(int64_t index);
  ShardedParameter& parameter(int64_t index);

  // -- policy --
  // Whether it was made for the module that fully_shard was called on last, which has others below.
  bool is_root() const { return is_root_; }
  void set_root(bool on);
  // The same, or made of parameters below that module by their order.
  bool is_of_root() const { return is_root_ || (automatic() && modules().front().fqn.empty()); }
  // Set until units are cut from the order in which parameters are used, of which it is one.
  std::shared_ptr<schedule::UseRecord> to_be_cut;
  LeafCompanions companions;  // of its leaf, until then

  // -- gathering; all under `mutex` --
  std::mutex mutex;
  int pins = 0;
  bool release_when_unpinned = false;
  bool gathered() const { return state_.is(UnitState::kUnsharded); }
  bool gathering() const { return state_.is(UnitState::kGathering); }
  // Issues the gather of a sharded unit; finish_gather waits for it, on the current stream. A failure of either leaves
  // the unit sharded.
  void begin_gather(BufferPool& pool, Pass pass, bool may_alias);
  void finish_gather();
  // An operator on the current stream is about to use the gathered unit.
  void use_on_current_stream() { readers_.add(device()); }
  // What the user wants gathered when this unit is used, in place of what is expected; empty: what is expected.
  std::vector<Unit*> forward_prefetch;
  std::vector<Unit*> backward_prefetch;
  // In which pass and when its gather was issued, and since when the limiter has held it back, for the trace (0:
  // unknown).
  Pass gather_pass = Pass::kForward;
  int64_t gather_issued = 0;
  int64_t held_back = 0;
  // Scopes in which its parameters may be written.
  int write_scopes = 0;
  // Inside summon_full_params(rank0_only), on the other ranks: a touch is an error.
  bool only_on_rank_0 = false;
  // Whether other ranks read its shards where they lie.
  bool shares_shards() const;
  // Whether this rank does now.
  bool reads_shards() const;
  // Whether this rank reads unsharded parameters now where other ranks read them, too.
  bool reads_in_place() const;
  bool reads_in_place(size_t flat) const;
  // Whether any of the unsharded parameters that it has gathered lie elsewhere than in this rank's shards.
  bool holds_copies() const;
  // Returns when its shards may be written: no other rank reads them where they lie. The unit must be sharded.
  void await_readers();
  // The unit must be gathered and unpinned. The current stream waits for all uses.
  void release(BufferPool& pool);
  // With a smaller group set, keeps this rank's part of the gathered parameters, so that the next gather goes over that
  // group. The unit must be gathered. See ReshardAfterForward. Keeps nothing of what other ranks read in the same
  // memory.
  void park(BufferPool& pool);
  void unpark(BufferPool& pool);
  // The smaller group that it is released to after forward; null: none.
  std::shared_ptr<Communicator> park_group;
  // The unsharded buffer of a FlatParameter; undefined where its shard serves, or while the unit is sharded.
  const at::Tensor& unsharded(const FlatParameter& flat) const;
  int64_t num_parameters() const;
  // Bytes of memory that gathering takes where shards do not serve as unsharded buffers.
  int64_t block_nbytes() const;
  // Bytes of the unsharded buffers that gather() has taken from the pool.
  int64_t unsharded_nbytes() const { return unsharded_nbytes_; }

  // Uses and reduces parameters in the dtype of the shards, or again as the options say. The unit must be sharded and
  // have no gradients under way. Hooks on gradient accumulators are to be added again.
  void set_full_precision(bool on);

  // -- versions (rule R4) --
  uint64_t shard_version() const;
  // The shard's version up to which gathers come behind all writes, in the order of streams. Atomic, as it is set
  // without `mutex`.
  std::atomic<uint64_t> ordered_version{~uint64_t{0}};
  // The shard's version when it was last gathered or used in forward.
  std::optional<uint64_t> stamp;
  // Whether they were written since then.
  bool shards_written() const { return stamp && *stamp != shard_version(); }
  // Whether it was used outside of backward passes since then, so that backward may find values of then.
  bool used_outside_backward = false;
  void invalidate_saved_values();

  // Throws when a parameter has left the engine (rule R6).
  void check_membership();
  void check_membership(const ShardedParameter& parameter) const;

  // Gives the module's parameters of which zero_grad has removed the sentinel a cleared shard gradient.
  void notice_cleared_gradients();
  // Puts a sentinel in the place of a parameter's gradient. `index`: within `flat`.
  void install_sentinel(FlatParameter& flat, int64_t index);
  // The same for all parameters in `captured` that have none: gradients that came from other ranks alone.
  void show_gradients(FlatGradient& gradient, const ParameterMask& captured);
  void name_storages();

  CollectiveId next_id(Pass pass);
  Engine* engine;  // changes when an outer module is annotated

 private:
  void check_leaves(const FlatParameter& flat) const;
  void sentinel_gone(int64_t index);
  BufferPool::Source source_of_leaf_gradients(const FlatParameter& flat) const;
  template <typename Parameters>
  void add_flat(Parameters parameters, at::ScalarType original, bool full_precision);
  bool needs_buffer(const FlatParameter& flat, bool may_alias) const;
  void acquire_buffers(BufferPool& pool, bool may_alias);
  c10::Device device() const;
  void order_behind_writes();
  void gather_flat(size_t index, Pass pass, BufferPool& pool);
  std::unique_ptr<Work> gather_parked(size_t index, const at::Tensor& full, Pass pass);
  std::unique_ptr<Work> gather_shards(size_t index, const at::Tensor& full, Pass pass, BufferPool& pool);
  void give_up_gather();

  UnitOrigin origin_;
  bool is_root_ = false;
  std::string name_;
  UnitOptions options_;
  ShardGroups groups_;
  std::vector<std::pair<at::ScalarType, at::ScalarType>> mixed_dtypes_;  // compute and reduce, by FlatParameter
  std::vector<std::unique_ptr<FlatParameter>> flat_parameters_;
  std::vector<std::unique_ptr<FlatGradient>> gradients_;
  at::Tensor block_;                            // kByte: the memory of unsharded_; undefined where it is empty
  std::vector<at::Tensor> unsharded_;           // one for each FlatParameter; undefined where the shard itself serves
  std::vector<at::Tensor> parked_;              // likewise; undefined unless parked
  std::vector<std::unique_ptr<Work>> gathers_;  // under way, and those whose results are read where they lie
  DeviceEvent issued_;                          // what the gather has enqueued on its stream
  StreamReaders readers_;                       // of the unsharded buffers
  DeviceEvent parked_written_;
  int64_t unsharded_nbytes_ = 0;
  StateMachine<UnitState> state_;
  uint64_t generations_[5] = {};
};

// The unit that a decision is about: the engine's decisions are about its units only.
inline Unit& as_unit(schedule::ScheduledUnit& scheduled) { return static_cast<Unit&>(scheduled); }
inline const Unit& as_unit(const schedule::ScheduledUnit& scheduled) { return static_cast<const Unit&>(scheduled); }

}  // namespace fsdp
