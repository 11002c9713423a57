// Gathers units before they are used or ahead of it, and releases them.
#pragma once

#include <atomic>
#include <functional>
#include <optional>
#include <vector>

#include "engine/gather_cycle.h"

namespace fsdp::engine {

// schedule::Residency decides what to gather ahead and what to release; the Gatherer acts, each time on one unit and
// under its lock, through a GatherCycle.
//
// Threads: safe, except that the test mode, may_alias and backward_needs_units change while no unit is in use.
class Gatherer {
 public:
  Gatherer(const UnitContext& context, UnitTree& tree, MemoryAccount& memory, base::TraceRecorder& trace);

  // -- visits --
  // Whether the unit is the one that was used last.
  bool visits(const Unit& unit) const { return residency_.visited() == &unit; }
  // Whether the unit that was used last is still pinned: the same operator then uses the next one as well.
  bool last_visited_is_pinned() const;
  // Begins a visit and makes room for its unit. Returns whether the visit counts ([Note: visits that count]).
  bool begin_visit(Unit& unit);
  // Issues the gather of the unit of a visit that counts, and of units that come next.
  void gather_for_visit(Unit& unit);
  void end_visit();
  void end_pass(Pass pass);
  // Issues gathers of units that are expected after the unit that was used last.
  void prefetch();
  // false: the next backward passes need no unit, as those that only multiply gradients of weights. They gather nothing
  // ahead; a unit that one uses all the same is gathered then. Must be the same on all ranks.
  void set_backward_needs_units(bool needs) { backward_needs_units_ = needs; }
  // Replaces units that no longer exist.
  void replace(const Successor& successor) { residency_.replace(successor); }

  // -- uses --
  // Gathers and pins a unit.
  void pin(Unit& unit) FSDP_EXCLUDES(unit.mutex);
  void unpin(Unit& unit) FSDP_EXCLUDES(unit.mutex);
  // pin() for a scope of the user; not a visit.
  void hold(Unit& unit) FSDP_EXCLUDES(unit.mutex);
  // Must be called before a view of one of the unit's parameters is made. Gathers nothing, because a view reads no
  // values.
  void note_view(Unit& unit) FSDP_EXCLUDES(unit.mutex);

  // -- gathering and releasing on request --
  // Issues the gathers of these units, which then stay gathered until they are used.
  void unshard(const std::vector<Unit*>& units);
  void wait_for(const std::vector<Unit*>& units);
  // Releases units that are not pinned, and what is parked of them.
  void reshard(const std::vector<Unit*>& units);
  void reshard_all();
  // Releases a unit that this backward does not use again; if it is pinned, once it is not.
  void release_after_last_use(Unit& unit) FSDP_EXCLUDES(unit.mutex);
  // At the end of a backward: releases all units but those that `stays` selects, and lets other ranks finish reading.
  // Units that stay after backward stay until their next use.
  void release_after_backward(const std::function<bool(const Unit&)>& stays);
  // Must be called when the options change that say after which passes a unit stays gathered.
  void note_changed(Unit& unit) FSDP_EXCLUDES(unit.mutex);
  // Prepares a write to the unit's shards: releases gathered parameters that are read in place from the shards, and
  // waits until no other rank reads the shards. Every write to a shard must go through this function, by the shard's
  // dispatch key or by an explicit call.
  void prepare_write_to_shards(Unit& unit) FSDP_EXCLUDES(unit.mutex);

  // Prepares that values which gathered parameters do not show yet are written to the shards (WriteThrough): does the
  // same, and also releases gathered copies, unless the unit is pinned, and parked ones.
  void prepare_write_through(Unit& unit) FSDP_EXCLUDES(unit.mutex);

  // Test mode, the strictest policy: every unit is released as soon as the outermost operator on it has ended, released
  // memory is overwritten with NaN and refilled at other addresses, and shards never serve as unsharded buffers.
  void set_strict(bool on);
  // Whether shards may serve as unsharded buffers.
  bool may_alias() const { return cycle_.may_alias(); }
  void set_may_alias(bool on) { cycle_.set_may_alias(on); }

  // Returns how many bytes the units of the last pass needed that were gathered at the same time.
  int64_t largest_window(Pass pass) const;
  // Adds what it has counted.
  void count(EngineStats& stats) const;

 private:
  void release_what_is_stale();
  void make_room_for(Unit& unit, std::optional<Pass> pass);
  bool gather_ahead(Unit& unit) FSDP_EXCLUDES(unit.mutex);
  void note_held_back(Unit& unit) FSDP_EXCLUDES(unit.mutex);

  template <typename Gather>
  void explaining(const Unit& unit, const Gather& gather);

  const UnitContext& context_;
  UnitTree& tree_;
  MemoryAccount& memory_;
  base::TraceRecorder& trace_;
  schedule::Residency residency_;
  GatherCycle cycle_;
  std::atomic<bool> backward_needs_units_{true};
  bool strict_ = false;
  std::vector<Unit*> left_by_backward_;  // gathered, and not used since
};

}  // namespace fsdp::engine
