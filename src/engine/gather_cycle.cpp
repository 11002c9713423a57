#include "engine/gather_cycle.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/StringUtil.h>

#include "engine/membership.h"
#include "engine/uncounted_writes.h"
#include "torch_seams/gradient_hooks.h"

namespace fsdp::engine {

using seams::in_backward;

namespace {

// Whether the shards were written since the unit was gathered, by writes of either kind. The unit must not be
// gathering.
bool written(const Unit& unit) FSDP_REQUIRES(unit.mutex) { return unit.versions.written() || written_uncounted(unit); }

// The same, before a gather. Throws if other ranks cannot know of the write.
bool written_on_all_ranks(const Unit& unit) FSDP_REQUIRES(unit.mutex) {
  if (unit.versions.written()) return true;
  if (!written_uncounted(unit)) return false;
  check_all_ranks_notice(unit);
  return true;
}

// Adds to the error that is being handled: other ranks do not come to a gather if they have not written.
void explain_why_anew(const Unit& unit) FSDP_REQUIRES(unit.mutex) {
  if (!unit.versions.replaces_kept()) return;
  try {
    throw;
  } catch (c10::Error& error) {
    error.add_context(c10::str(
        unit.where(),
        ": it was being gathered anew, because this rank's part of it was written while gathered parameters were "
        "kept. All ranks must write at the same point of the program, or release the unit (reshard) after the "
        "write"));
  } catch (...) {  // has no contexts
  }
}

}  // namespace

Pass pass_now() { return in_backward() ? Pass::kBackward : Pass::kForward; }

// ---------------------------------------------------------------- gathering

void GatherCycle::issue(Unit& unit) {
  notice_writes(unit);
  if (unit.buffers.sharded()) begin(unit);
}

bool GatherCycle::issue_ahead(Unit& unit) {
  if (!unit.buffers.sharded() || !unit.groups().shard || unit.use.forbidden()) return false;
  const bool stale = written_on_all_ranks(unit);
  if (in_backward() && (stale || !unit.switches().unshard_in_backward)) return false;
  if (stale) release_stale(unit);
  begin(unit);
  unit.note_prefetched();
  ++prefetches_;
  return true;
}

void GatherCycle::gather(Unit& unit) {
  issue(unit);
  finish(unit);
}

void GatherCycle::begin(Unit& unit) {
  const Pass pass = pass_now();
  check_membership(unit);
  const bool may_differ = may_be_written(unit);
  if (context_.streams.apart() && (!unit.gather_order().holds() || may_differ)) tree_.order_gathers_after_writes();
  watch_shards(unit);
  try {
    all_gathers_ += unit.buffers.begin_gather(memory_.parameters(), pass, may_alias_, may_differ);
  } catch (...) {
    explain_why_anew(unit);
    throw;
  }
  unit.versions.note_first_seen();
  unit.times.note_issued(pass, trace_.now());
  trace_.record(TraceTrack::kLimiter, unit.name(), pass, unit.times.take_held_back());
  residency_.add(unit);
  trace_.sample_memory();
}

void GatherCycle::finish(Unit& unit) {
  if (!unit.buffers.gathering()) return;
  const int64_t waiting = trace_.now();
  try {
    unit.buffers.finish_gather(memory_.parameters());
  } catch (...) {
    explain_why_anew(unit);
    remove_from_residency(unit);
    throw;
  }
  unit.versions.note_kept_replaced(false);
  trace_.record(TraceTrack::kWait, unit.name(), unit.times.pass(), waiting);
  trace_.record(TraceTrack::kGather, unit.name(), unit.times.pass(), unit.times.issued());
}

// ---------------------------------------------------------------- releasing

void GatherCycle::release(Unit& unit) {
  const bool may_park = unit.buffers.park_group() && !in_backward() && !unit.use.writable();
  if (may_park && !written(unit)) unit.buffers.park(memory_.parameters());
  unit.use.note_released();
  unit.buffers.release(memory_.parameters());
  remove_from_residency(unit);
  trace_.sample_memory();
}

void GatherCycle::release_if_idle(Unit& unit) {
  finish(unit);
  if (unit.buffers.gathered() && !unit.use.pinned()) release(unit);
}

void GatherCycle::release_if_stale(Unit& unit) {
  if (unit.buffers.gathered() && written_on_all_ranks(unit) && !unit.use.pinned()) release_stale(unit);
}

void GatherCycle::unpark(Unit& unit) { unit.buffers.unpark(memory_.parameters()); }

void GatherCycle::remove_from_residency(Unit& unit) {
  residency_.remove(unit);
  prefetches_wasted_ += unit.note_released() ? 1 : 0;
}

// ---------------------------------------------------------------- writes to shards

bool GatherCycle::backward_relies_on(const Unit& unit) const {
  return in_backward() && (unit.versions.used_outside_backward() || !at::GradMode::is_enabled());
}

void GatherCycle::notice_writes(Unit& unit) {
  const bool relies = backward_relies_on(unit);
  unit.versions.note_use(in_backward());
  // Values that are being gathered cannot be compared with the shards.
  if (unit.buffers.gathering() && may_be_written(unit)) finish(unit);
  if (!written_on_all_ranks(unit)) return;
  TORCH_CHECK(!relies, "fsdp: ", unit.where(),
              ": its shards were written between forward and backward (an optimizer step?), so that this backward "
              "would use other values than its forward. Run backward before the step, or run forward again");
  release_stale(unit);
}

void GatherCycle::release_stale(Unit& unit) {
  unit.versions.invalidate_saved_values();
  finish(unit);  // the values being gathered are stale
  unit.versions.note_kept_replaced(unit.buffers.holds_copies() || unit.buffers.parks_any());
  if (unit.buffers.gathered() && unit.buffers.holds_copies()) {
    TORCH_CHECK(!unit.use.pinned(), "fsdp: ", unit.where(), ": its shards were written while an operator uses it");
    release(unit);
  }
  unpark(unit);
  unit.versions.note_seen();
}

void GatherCycle::end_reading(Unit& unit) {
  if (unit.flat_parameters().shares_shards()) finish(unit);
  if (unit.buffers.gathered() && unit.buffers.reads_shards() && !unit.use.pinned()) release(unit);
}

void GatherCycle::release_views_of_shards(Unit& unit) {
  if (unit.buffers.gathering()) gather(unit);
  if (!unit.buffers.gathered() || !unit.buffers.reads_shards()) return;
  TORCH_CHECK(!unit.use.pinned(), "fsdp: ", unit.where(),
              ": its shards were written while the unit was pinned and its parameters were views of the shards. "
              "Write after the scope of pin() has ended");
  release(unit);
}

void GatherCycle::release_copies(Unit& unit) {
  finish(unit);
  if (unit.buffers.gathered() && unit.buffers.holds_copies() && !unit.use.pinned()) release(unit);
  unpark(unit);
}

void GatherCycle::count(EngineStats& stats) const {
  stats.all_gathers = all_gathers_;
  stats.prefetches = prefetches_;
  stats.prefetches_wasted = prefetches_wasted_;
}

}  // namespace fsdp::engine
