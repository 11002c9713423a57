// Makes units from the order in which parameters were used (Options::auto_units).
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "base/mutex.h"
#include "engine/gatherer.h"
#include "engine/gradient_flow.h"
#include "engine/memory_account.h"
#include "engine/unit_tree.h"
#include "fsdp/auto_units.h"
#include "schedule/unit_cut.h"
#include "schedule/use_record.h"

namespace fsdp::engine {

// schedule::cut_into_units decides; this class records uses and makes the units.
//
// Threads: uses may be noted from any thread. Units are cut while none is in use.
class UnitCutter {
 public:
  UnitCutter(UnitContext& context, UnitTree& tree, MemoryAccount& memory, Gatherer& gatherer, GradientFlow& gradients);

  // Marks a unit of one parameter: it will be cut together with the other units of the record.
  void cut_later(Unit& unit, const std::shared_ptr<schedule::UseRecord>& record) FSDP_EXCLUDES(mutex_);
  // Takes over the records of a cutter whose units were absorbed.
  void absorb(UnitCutter& inner);
  // Returns the records whose units have not been cut yet: all of them, or `only` this one.
  std::vector<std::shared_ptr<schedule::UseRecord>> records(const schedule::UseRecord* only) const
      FSDP_EXCLUDES(mutex_);
  // Must be called before a unit is used, before its visit begins.
  void note_use(Unit& unit) FSDP_EXCLUDES(mutex_);

  // Throws if a unit that will be cut is in use or was changed in a way that a new unit cannot follow.
  void check_ready() const;
  // Cuts the units of a record, which must be resharded and have no gradients in flight. Collective.
  void cut(const std::shared_ptr<schedule::UseRecord>& record) FSDP_EXCLUDES(mutex_);

  // See ShardedModule::execution_order.
  ExecutionOrder execution_order() const FSDP_EXCLUDES(mutex_);

 private:
  struct OrderedUse {
    std::vector<seams::StorageOwnerPtr> owners;
    bool returns = false;
    bool joins = true;
  };
  std::vector<schedule::ScheduledUnit*> make_units(const schedule::UnitCut& cut,
                                                   const std::vector<schedule::UseRecord::Use>& order);
  std::unique_ptr<Unit> unite(const std::vector<Unit*>& members);
  void note_order(const std::vector<schedule::UseRecord::Use>& order) FSDP_EXCLUDES(mutex_);

  UnitContext& context_;
  UnitTree& tree_;
  MemoryAccount& memory_;
  Gatherer& gatherer_;
  GradientFlow& gradients_;
  mutable base::Mutex mutex_;
  std::vector<std::shared_ptr<schedule::UseRecord>> records_ FSDP_GUARDED_BY(mutex_);  // and visits in them
  std::vector<OrderedUse> execution_order_ FSDP_GUARDED_BY(mutex_);  // of parameters of units that were cut
  std::atomic<bool> has_records_{false};
};

}  // namespace fsdp::engine
