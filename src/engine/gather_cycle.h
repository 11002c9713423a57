// The acts of one gather: the way of a unit from sharded through gathering to gathered, and back.
#pragma once

#include <atomic>

#include "base/trace_recorder.h"
#include "engine/memory_account.h"
#include "engine/unit_tree.h"
#include "schedule/residency.h"

namespace fsdp::engine {

// Returns the pass that runs on this thread.
Pass pass_now();

// The Gatherer decides when. A GatherCycle makes sure that the gathered values are those of the shards (rule R4): acts
// that gather notice writes to the shards since the last one.
//
// Threads: safe; whoever acts on a unit holds its mutex. may_alias changes only while no unit is in use.
class GatherCycle {
 public:
  GatherCycle(const UnitContext& context, UnitTree& tree, MemoryAccount& memory, base::TraceRecorder& trace,
              schedule::Residency& residency)
      : context_(context), tree_(tree), memory_(memory), trace_(trace), residency_(residency) {}

  // -- gathering --
  // Issues the gather of a unit, unless it is gathered or being gathered.
  void issue(Unit& unit) FSDP_REQUIRES(unit.mutex);
  // Does the same for a unit that is expected. Returns whether it has issued anything. Backward gathers no unit ahead
  // whose shards were written since their forward; if it uses one, the use throws.
  bool issue_ahead(Unit& unit) FSDP_REQUIRES(unit.mutex);
  // Waits for the gather of a unit, on the current stream, if one was issued.
  void finish(Unit& unit) FSDP_REQUIRES(unit.mutex);
  // Issues the gather if needed, and waits for it.
  void gather(Unit& unit) FSDP_REQUIRES(unit.mutex);

  // -- releasing --
  // Releases a gathered unit, which must not be pinned.
  void release(Unit& unit) FSDP_REQUIRES(unit.mutex);
  // Releases a unit that is not pinned, after its gather has ended.
  void release_if_idle(Unit& unit) FSDP_REQUIRES(unit.mutex);
  // Releases a unit that is not pinned if its shards were written since it was gathered.
  void release_if_stale(Unit& unit) FSDP_REQUIRES(unit.mutex);
  void unpark(Unit& unit) FSDP_REQUIRES(unit.mutex);

  // -- writes to shards --
  // Releases stale values of a unit that is about to be used. Throws if a backward would use other values than its
  // forward, or if an operator uses the unit at this moment.
  void notice_writes(Unit& unit) FSDP_REQUIRES(unit.mutex);
  // Whether the running backward may use values of the unit that an earlier forward saved. A forward inside backward
  // (in a function whose backward runs modules) does not use them if the unit was used only inside backward passes.
  bool backward_relies_on(const Unit& unit) const FSDP_REQUIRES(unit.mutex);
  // If ranks share the unit's shards: ends the gather in progress, and releases parameters that are views of the
  // shards, unless the unit is pinned.
  void end_reading(Unit& unit) FSDP_REQUIRES(unit.mutex);
  // Ends the gather in progress, and releases parameters that are views of the shards. Throws if they are in use.
  void release_views_of_shards(Unit& unit) FSDP_REQUIRES(unit.mutex);
  // Releases parked copies and, unless the unit is pinned, gathered ones.
  void release_copies(Unit& unit) FSDP_REQUIRES(unit.mutex);

  // Whether shards may serve as unsharded buffers.
  bool may_alias() const { return may_alias_; }
  void set_may_alias(bool on) { may_alias_ = on; }

  // Adds its counts.
  void count(EngineStats& stats) const;

 private:
  void begin(Unit& unit) FSDP_REQUIRES(unit.mutex);
  void release_stale(Unit& unit) FSDP_REQUIRES(unit.mutex);
  void remove_from_residency(Unit& unit);

  const UnitContext& context_;
  UnitTree& tree_;
  MemoryAccount& memory_;
  base::TraceRecorder& trace_;
  schedule::Residency& residency_;
  std::atomic<bool> may_alias_{true};
  std::atomic<int64_t> all_gathers_{0};
  std::atomic<int64_t> prefetches_{0};
  std::atomic<int64_t> prefetches_wasted_{0};
};

}  // namespace fsdp::engine
