// A unit: parameters that are gathered and released together.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "engine/gradient_sentinels.h"
#include "engine/leaf_companions.h"
#include "engine/shard_groups.h"
#include "engine/shard_versions.h"
#include "engine/unit_context.h"
#include "engine/unit_gradients.h"
#include "engine/unit_names.h"
#include "engine/unit_parameters.h"
#include "engine/unit_switches.h"
#include "engine/unit_use.h"
#include "engine/unsharded_buffers.h"
#include "schedule/scheduled_unit.h"

namespace fsdp::schedule {
class UseRecord;
}  // namespace fsdp::schedule

namespace fsdp::engine {

// A unit of one parameter that will be united with others once their order is known (Options::auto_units).
struct PendingCut {
  std::shared_ptr<schedule::UseRecord> record;  // the order in which parameters are used
  LeafCompanions companions;                    // of the unit's leaf
};

// The parameters of a unit, its names and options, and its parts that change while it is used. Facts change only while
// none of its parameters is in use.
class Unit : public schedule::ScheduledUnit {
 public:
  Unit(UnitContext& context, UnitOrigin origin, const UnitOptions& options);
  // Adds a FlatParameter. Call name_it() after the last one.
  void add(std::vector<flat::ShardedParameter> parameters);
  void add(flat::FlatParameter::Moved parameters);
  void name_it();
  // Clears its FlatParameters after their parameters have moved to other units. Handles may still refer to the unit.
  void retire(BufferPool& pool) FSDP_EXCLUDES(mutex);

  // -- the tree that it belongs to --
  Engine& engine() const { return context_->engine; }
  const UnitContext& context() const { return *context_; }
  void move_to(UnitContext& context) { context_ = &context; }

  // -- origin and names --
  const UnitNames& names() const { return names_; }
  const UnitOptions& options() const { return options_; }
  // Changes the option of a unit that exists.
  void set_reshard_after_forward(const ReshardAfterForward& reshard);
  using ScheduledUnit::set_stays_after_backward;
  UnitSwitches& switches() { return switches_; }
  const UnitSwitches& switches() const { return switches_; }
  const ShardGroups& groups() const { return groups_; }
  void set_reduce_group(std::shared_ptr<Communicator> group) { groups_.reduce = std::move(group); }
  // Whether it was made for the module that fully_shard was called on last or, with auto_units, of the parameters that
  // stay gathered.
  bool is_root() const { return is_root_; }
  void set_root(bool on);
  // Whether it is the root, or was made of parameters below that module by their order.
  bool is_of_root() const { return is_root_ || (automatic() && names_.modules().front().fqn.empty()); }
  const std::string& name() const { return names_.unit(); }
  // "rank 1: unit 'layers.0'"
  std::string where() const;
  // Gives modules and parameters the names that they have below a new root. `module_fqns`: in the order of
  // names().modules(). `parameter_fqns`: returns the names of a parameter, which it identifies by the tensor; the first
  // one becomes the main name.
  void rename(const std::vector<std::string>& module_fqns,
              const std::function<std::vector<std::string>(const at::Tensor&)>& parameter_fqns);
  // Returns the identity of the unit's next collective in a pass.
  CollectiveId next_id(Pass pass);
  // Null once its parameters have moved to the unit that was cut, and for units that were not made to be cut.
  PendingCut* pending_cut() { return pending_cut_.get(); }
  const PendingCut* pending_cut() const { return pending_cut_.get(); }
  void cut_later(std::shared_ptr<schedule::UseRecord> record);

  // -- parameters --
  const UnitParameters& flat_parameters() const { return parameters_; }
  struct Place {
    flat::FlatParameter& flat;
    FlatGradient* gradient;  // null if no parameter of `flat` ever got gradients
    int64_t parameter;       // within flat
  };
  // Returns the place of the parameter with this index in the unit.
  Place place(int64_t index);
  flat::ShardedParameter& parameter(int64_t index) const { return parameters_.parameter(index); }
  // Blocks until its shards may be written, when no other rank reads them in place. The unit must be sharded.
  void await_readers() const;
  // If `on`, uses and reduces parameters in the dtype of the shards, otherwise again as the options say. The unit must
  // be sharded and have no gradients in flight.
  void set_full_precision(bool on);

  // -- gradients --
  UnitGradients& gradients() { return gradients_; }
  const UnitGradients& gradients() const { return gradients_; }

  // -- gathering --
  // Whether an operator or a scope of the user keeps it gathered now.
  bool is_pinned() const FSDP_EXCLUDES(mutex);
  GatherOrder& gather_order() { return gather_order_; }

  // -- parts that change while the unit is used --
  GradientSentinels sentinels;  // has a lock of its own
  // Pin and gather, and unpin and release, are each one critical section (rule R3).
  mutable base::Mutex mutex;
  UnshardedBuffers buffers FSDP_GUARDED_BY(mutex);
  UnitUse use FSDP_GUARDED_BY(mutex);
  ShardVersions versions FSDP_GUARDED_BY(mutex);
  GatherTimes times FSDP_GUARDED_BY(mutex);

 private:
  template <typename Parameters>
  flat::FlatParameter& add_flat(Parameters parameters, at::ScalarType original, bool full_precision);
  flat::ShardPosition position_for_shards();

  UnitContext* context_;  // never null
  UnitNames names_;
  UnitOptions options_;
  UnitSwitches switches_;
  ShardGroups groups_;
  bool is_root_ = false;
  std::unique_ptr<PendingCut> pending_cut_;
  std::vector<std::pair<at::ScalarType, at::ScalarType>> mixed_dtypes_;  // compute and reduce, by FlatParameter
  UnitParameters parameters_;
  UnitGradients gradients_;
  GatherOrder gather_order_;
};

// Returns the unit that a decision concerns. The engine's decisions concern its own units only.
inline Unit& as_unit(schedule::ScheduledUnit& scheduled) { return static_cast<Unit&>(scheduled); }
inline const Unit& as_unit(const schedule::ScheduledUnit& scheduled) { return static_cast<const Unit&>(scheduled); }

// Returns the unit that a storage of the engine belongs to; null once the engine was destroyed.
inline Unit* unit_of(const seams::StorageOwner& owner) { return static_cast<Unit*>(owner.unit.load()); }

}  // namespace fsdp::engine
