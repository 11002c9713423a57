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

// A module that a unit was made for: its FQN ("" for the module that fully_shard was called on) and its identity.
struct AnnotatedModule {
  std::string fqn;
  const void* identity;
};

// The origin of a unit: a module, several siblings, or parameters below a module grouped by their order
// (Options::auto_units).
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
  // Adds a FlatParameter. Call name_it() after the last one.
  void add(std::vector<ShardedParameter> parameters);
  void add(FlatParameter::Moved parameters);
  void name_it();
  // Drops its FlatParameters after their parameters have moved to other units. Handles may still refer to the unit.
  void retire(BufferPool& pool);

  // -- identity --
  const std::string& name() const { return name_; }
  const std::vector<AnnotatedModule>& modules() const { return origin_.modules; }
  const UnitOptions& options() const { return options_; }
  const ShardGroups& groups() const { return groups_; }
  void set_reduce_group(std::shared_ptr<Communicator> group) { groups_.reduce = std::move(group); }
  // Whether any of its parameters gets gradients.
  bool trains() const;
  // Gives modules and parameters the names that they have below a new root. `module_fqns`: in the order of modules().
  // `parameter_fqns`: returns the names of a parameter, which it identifies by the tensor; the first one becomes the
  // main name.
  void rename(const std::vector<std::string>& module_fqns,
              const std::function<std::vector<std::string>(const at::Tensor&)>& parameter_fqns);
  // "<name>.flat_param", "<name>.flat_param_2", …
  std::string flat_name(size_t index) const;
  // "rank 1: unit 'layers.0'"
  std::string where() const;

  std::vector<std::unique_ptr<FlatParameter>>& flat_parameters() { return flat_parameters_; }
  const std::vector<std::unique_ptr<FlatParameter>>& flat_parameters() const { return flat_parameters_; }
  FlatGradient* gradient(size_t flat) { return gradients_.at(flat).get(); }  // null for a frozen one
  // captures(): whether this backward has captured gradients that are not being reduced yet. has_all_gradients():
  // whether it has captured the gradients of all parameters that get any.
  bool captures() const;
  bool has_all_gradients() const;
  bool has_frozen() const;
  struct Place {
    FlatParameter& flat;
    FlatGradient* gradient;
    int64_t parameter;  // within flat
  };
  // Returns the place of the parameter with this index in the unit.
  Place place(int64_t index);
  ShardedParameter& parameter(int64_t index);

  // -- policy --
  // Whether it was made for the module that fully_shard was called on last or, with auto_units, of the parameters that
  // stay gathered.
  bool is_root() const { return is_root_; }
  void set_root(bool on);
  // Whether it is the root, or was made of parameters below that module by their order.
  bool is_of_root() const { return is_root_ || (automatic() && modules().front().fqn.empty()); }
  // The record of the order in which parameters are used. The unit is one of its members until units are cut from it;
  // then null.
  std::shared_ptr<schedule::UseRecord> to_be_cut;
  LeafCompanions companions;  // of its leaf, while to_be_cut is set

  // -- gathering; all under `mutex` --
  std::mutex mutex;
  int pins = 0;
  bool release_when_unpinned = false;
  bool gathered() const { return state_.is(UnitState::kUnsharded); }
  bool gathering() const { return state_.is(UnitState::kGathering); }
  // Issues the gather of a sharded unit. finish_gather() waits for it on the current stream. If either fails, the unit
  // is sharded afterwards.
  void begin_gather(BufferPool& pool, Pass pass, bool may_alias);
  void finish_gather();
  // Notes that an operator on the current stream is about to use the gathered unit.
  void use_on_current_stream() { readers_.add(device()); }
  // The units that the user wants gathered when this unit is used, instead of the expected ones. If empty, the expected
  // units are gathered.
  std::vector<Unit*> forward_prefetch;
  std::vector<Unit*> backward_prefetch;
  // For the trace: the pass and the time in which its gather was issued, and the time since which the limiter has held
  // it back (0: unknown).
  Pass gather_pass = Pass::kForward;
  int64_t gather_issued = 0;
  int64_t held_back = 0;
  // The number of open scopes in which its parameters may be written.
  int write_scopes = 0;
  // Set inside summon_full_params(rank0_only) on all ranks but 0: a touch is an error.
  bool only_on_rank_0 = false;
  // Whether ranks read each other's shards of this unit in place.
  bool shares_shards() const;
  // Whether this rank now reads other ranks' shards in place.
  bool reads_shards() const;
  // Whether this rank now reads unsharded parameters in memory that other ranks read as well.
  bool reads_in_place() const;
  bool reads_in_place(size_t flat) const;
  // Whether any of its gathered unsharded parameters lie outside of this rank's shards.
  bool holds_copies() const;
  // Blocks until its shards may be written, when no other rank reads them in place. The unit must be sharded.
  void await_readers();
  // Releases the unit, which must be gathered and unpinned. The current stream waits for all uses.
  void release(BufferPool& pool);
  // If park_group is set, keeps this rank's part of the gathered parameters, so that the next gather goes over that
  // group (see ReshardAfterForward). Keeps nothing of parameters that ranks read in the same memory. The unit must be
  // gathered.
  void park(BufferPool& pool);
  void unpark(BufferPool& pool);
  // The smaller group that shares the parameters of the unit after it is parked; null: none.
  std::shared_ptr<Communicator> park_group;
  // Returns the unsharded buffer of a FlatParameter; undefined if its shard serves as the buffer, or while the unit is
  // sharded.
  const at::Tensor& unsharded(const FlatParameter& flat) const;
  int64_t num_parameters() const;
  // Bytes of memory that gathering takes, without the FlatParameters whose shards or shared memory serve as the
  // unsharded buffer.
  int64_t block_nbytes() const;
  // Bytes of the unsharded buffers that begin_gather() has taken from the pool.
  int64_t unsharded_nbytes() const { return unsharded_nbytes_; }

  // If `on`, uses and reduces parameters in the dtype of the shards, otherwise again as the options say. The unit must
  // be sharded and have no gradients in flight. The caller must add the hooks on gradient accumulators again.
  void set_full_precision(bool on);

  // -- versions (rule R4) --
  uint64_t shard_version() const;
  // The version of the shards up to which gathers come after all writes in stream order. Atomic, because it is set
  // without `mutex`.
  std::atomic<uint64_t> ordered_version{~uint64_t{0}};
  // The version of the shards when the unit was last gathered or used in forward.
  std::optional<uint64_t> stamp;
  // Whether the shards were written since `stamp` was set.
  bool shards_written() const { return stamp && *stamp != shard_version(); }
  // Whether it was ever used outside of backward passes, so that backward may find values saved then.
  bool used_outside_backward = false;
  void invalidate_saved_values();

  // Throws if a parameter has left the engine (rule R6).
  void check_membership();
  void check_membership(const ShardedParameter& parameter) const;

  // Clears the shard gradients of the module's parameters from which zero_grad has removed the sentinel.
  void notice_cleared_gradients();
  // Installs a sentinel as a parameter's gradient. `index`: within `flat`.
  void install_sentinel(FlatParameter& flat, int64_t index);
  // Installs sentinels for all parameters in `captured` that have none, because their gradients came only from other
  // ranks.
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
  at::Tensor block_;                            // kByte: the memory of unsharded_; undefined if that is empty
  std::vector<at::Tensor> unsharded_;           // by FlatParameter; undefined if the shard itself serves
  std::vector<at::Tensor> parked_;              // by FlatParameter; undefined unless parked
  std::vector<std::unique_ptr<Work>> gathers_;  // in progress, and gathers whose results are read in place
  DeviceEvent issued_;                          // after the work that the gather has enqueued on its stream
  StreamReaders readers_;                       // of the unsharded buffers
  DeviceEvent parked_written_;
  int64_t unsharded_nbytes_ = 0;
  StateMachine<UnitState> state_;
  uint64_t generations_[5] = {};
};

// Returns the unit that a decision concerns. The engine's decisions concern its own units only.
inline Unit& as_unit(schedule::ScheduledUnit& scheduled) { return static_cast<Unit&>(scheduled); }
inline const Unit& as_unit(const schedule::ScheduledUnit& scheduled) { return static_cast<const Unit&>(scheduled); }

}  // namespace fsdp
