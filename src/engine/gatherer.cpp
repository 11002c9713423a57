#include "engine/gatherer.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/StringUtil.h>

#include <utility>

#include "engine/membership.h"
#include "engine/uncounted_writes.h"
#include "schedule/block_places.h"
#include "schedule/memory_bounds.h"
#include "torch_seams/gradient_hooks.h"

namespace fsdp::engine {

using schedule::ScheduledUnit;

using seams::in_backward;

namespace {

Pass pass_now() { return in_backward() ? Pass::kBackward : Pass::kForward; }

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

Gatherer::Gatherer(const UnitContext& context, UnitTree& tree, MemoryAccount& memory, base::TraceRecorder& trace)
    : context_(context),
      tree_(tree),
      memory_(memory),
      trace_(trace),
      residency_(context.options.overlap.max_gathered_units) {}

template <typename Gather>
void Gatherer::explaining(const Unit& unit, const Gather& gather) {
  memory_.explaining([&] { return c10::str("gathering unit '", unit.name(), "'"); }, gather);
}

// ---------------------------------------------------------------- visits

bool Gatherer::last_visited_is_pinned() const {
  const ScheduledUnit* last = residency_.visited();
  return last && as_unit(*last).is_pinned();
}

bool Gatherer::begin_visit(Unit& unit) {
  const Pass pass = pass_now();
  if (!left_by_backward_.empty()) release_what_is_stale();
  const bool counts = residency_.begin_visit({&unit, pass, trace_.now()});
  if (counts) make_room_for(unit, pass);
  return counts;
}

// The gathers of the next units are issued before this unit's gather is waited for.
void Gatherer::gather_for_visit(Unit& unit) {
  {
    base::MutexLock lock(unit.mutex);
    if (!unit.use.forbidden()) ensure_issued(unit);
  }
  for (Unit* wanted : unit.switches().prefetched(pass_now())) {
    explaining(*wanted, [&] {
      if (begin_prefetch(*wanted)) wanted->note_requested();
    });
  }
  if (!in_backward() || context_.options.overlap.backward_prefetch == BackwardPrefetch::kPre) prefetch();
}

// Parameters that backward has left gathered are gathered ahead again if an optimizer has written to the shards since.
void Gatherer::release_what_is_stale() {
  for (Unit* unit : std::exchange(left_by_backward_, {})) {
    base::MutexLock lock(unit->mutex);
    if (unit->buffers.gathered() && written_on_all_ranks(*unit) && !unit->use.pinned()) release_stale(*unit);
  }
}

void Gatherer::end_visit() {
  if (schedule::Residency::Visit visit = residency_.end_visit(); visit.unit) {
    trace_.record(TraceTrack::kCompute, as_unit(*visit.unit).name(), visit.pass, visit.began);
  }
}

void Gatherer::end_pass(Pass pass) {
  end_visit();
  residency_.end_pass(pass);
}

void Gatherer::make_room_for(Unit& unit, std::optional<Pass> pass) {
  for (ScheduledUnit* victim : residency_.to_release_for(unit, pass)) release_if_idle(as_unit(*victim));
}

void Gatherer::prefetch() {
  if (in_backward() && !backward_needs_units_) return;
  const OverlapOptions& overlap = context_.options.overlap;
  const bool predicts = in_backward() ? overlap.backward_prefetch != BackwardPrefetch::kNone : overlap.forward_prefetch;
  const ScheduledUnit* visited = residency_.visited();  // null when a backward begins
  if (!predicts || (visited && !as_unit(*visited).switches().prefetched(pass_now()).empty())) return;
  const bool one_by_one = in_backward() && overlap.backward_prefetch == BackwardPrefetch::kPost;
  const schedule::Residency::Ahead ahead =
      residency_.to_gather_ahead(pass_now(), one_by_one ? 1 : overlap.max_gathered_units);
  for (ScheduledUnit* expected : ahead.to_gather) {
    Unit& unit = as_unit(*expected);
    explaining(unit, [&] { begin_prefetch(unit); });
  }
  if (ahead.held_back) note_held_back(as_unit(*ahead.held_back));
}

// Issues the gather of an expected unit and returns true, or returns false if there is nothing to issue. Backward skips
// units whose shards were written since their forward; if it uses one, the use throws.
bool Gatherer::begin_prefetch(Unit& unit) {
  base::MutexLock lock(unit.mutex);
  if (!unit.buffers.sharded() || !unit.groups().shard || unit.use.forbidden()) return false;
  const bool stale = written_on_all_ranks(unit);
  if (in_backward() && (stale || !unit.switches().unshard_in_backward)) return false;
  if (stale) release_stale(unit);
  issue_gather(unit);
  unit.note_prefetched();
  ++prefetches_;
  return true;
}

void Gatherer::note_held_back(Unit& unit) {
  base::MutexLock lock(unit.mutex);
  if (unit.buffers.sharded()) unit.times.note_held_back(trace_.now());
}

// ---------------------------------------------------------------- uses

void Gatherer::pin(Unit& unit) {
  explaining(unit, [&] {
    base::MutexLock lock(unit.mutex);
    gather_to_use(unit);
    unit.use.pin();
  });
}

void Gatherer::unpin(Unit& unit) {
  base::MutexLock lock(unit.mutex);
  if (unit.use.unpin() && unit.buffers.gathered() && (strict_ || unit.use.to_be_released())) release(unit);
}

void Gatherer::hold(Unit& unit) {
  end_visit();
  make_room_for(unit, std::nullopt);
  pin(unit);
}

// Making a view of a parameter gathers nothing, but the view remembers the version of the parameter. An optimizer step
// must have changed that version before, otherwise autograd takes the view for older than the parameter.
void Gatherer::note_view(Unit& unit) {
  base::MutexLock lock(unit.mutex);
  if (!backward_relies_on(unit)) notice_shard_writes(unit);
}

void Gatherer::gather_to_use(Unit& unit) {
  TORCH_CHECK(!unit.use.forbidden(), "fsdp: ", unit.where(),
              ": a parameter was used inside summon_full_params(rank0_only): there only rank 0 has it");
  ensure_gathered(unit);
  unit.buffers.use_on_current_stream();
  unit.note_used();
}

// ---------------------------------------------------------------- writes to shards

bool Gatherer::backward_relies_on(const Unit& unit) const {
  return in_backward() && (unit.versions.used_outside_backward() || !at::GradMode::is_enabled());
}

void Gatherer::notice_shard_writes(Unit& unit) {
  const bool relies = backward_relies_on(unit);
  unit.versions.note_use(in_backward());
  // Values that are being gathered cannot be compared with the shards.
  if (unit.buffers.gathering() && may_be_written(unit)) finish_gather(unit);
  if (!written_on_all_ranks(unit)) return;
  TORCH_CHECK(!relies, "fsdp: ", unit.where(),
              ": its shards were written between forward and backward (an optimizer step?), so that this backward "
              "would use other values than its forward. Run backward before the step, or run forward again");
  release_stale(unit);
}

void Gatherer::release_stale(Unit& unit) {
  unit.versions.invalidate_saved_values();
  if (unit.buffers.gathering()) {
    finish_gather(unit);  // the values being gathered are stale
  }
  unit.versions.note_kept_replaced(unit.buffers.holds_copies() || unit.buffers.parks_any());
  if (unit.buffers.gathered() && unit.buffers.holds_copies()) {
    TORCH_CHECK(!unit.use.pinned(), "fsdp: ", unit.where(), ": its shards were written while an operator uses it");
    release(unit);
  }
  unit.buffers.unpark(memory_.parameters());
  unit.versions.note_seen();
}

// [Note: readers that wait for each other]
// The rank that writes waits until no other rank reads this unit's shards. Ranks may write to units in different
// orders, because an optimizer passes over leaves without elements. Therefore each rank first ends its own reading of
// all units; otherwise two ranks would wait for each other. Optimizers inside backward need not do this: they write in
// the order of reductions, which is the same on all ranks, while the next units are being read.
void Gatherer::prepare_write_to_shards(Unit& unit) {
  if (!unit.shares_shards()) return;
  if (!in_backward()) {
    for (ScheduledUnit* gathered : residency_.gathered()) end_reading(as_unit(*gathered));
  }
  base::MutexLock lock(unit.mutex);
  if (unit.buffers.gathering()) ensure_gathered(unit);
  if (unit.buffers.gathered() && unit.buffers.reads_shards()) {
    TORCH_CHECK(!unit.use.pinned(), "fsdp: ", unit.where(),
                ": its shards were written while the unit was pinned and its parameters were views of the shards. "
                "Write after the scope of pin() has ended");
    release(unit);
  }
  unit.await_readers();
}

void Gatherer::prepare_write_through(Unit& unit) {
  prepare_write_to_shards(unit);
  base::MutexLock lock(unit.mutex);
  if (unit.buffers.gathering()) finish_gather(unit);
  if (unit.buffers.gathered() && unit.buffers.holds_copies() && !unit.use.pinned()) release(unit);
  unit.buffers.unpark(memory_.parameters());
  if (context_.options.memory.apart()) {  // the host is about to write to memory that a device may still read
    base::DeviceEvent gathered;
    gathered.record(context_.streams.gather);
    gathered.synchronize();
  }
}

void Gatherer::end_reading(Unit& unit) {
  base::MutexLock lock(unit.mutex);
  if (unit.buffers.gathering() && unit.shares_shards()) finish_gather(unit);
  if (unit.buffers.gathered() && unit.buffers.reads_shards() && !unit.use.pinned()) release(unit);
}

// ---------------------------------------------------------------- gathering and releasing

void Gatherer::ensure_issued(Unit& unit) {
  notice_shard_writes(unit);
  if (unit.buffers.sharded()) issue_gather(unit);
}

void Gatherer::ensure_gathered(Unit& unit) {
  ensure_issued(unit);
  if (unit.buffers.gathering()) finish_gather(unit);
}

void Gatherer::issue_gather(Unit& unit) {
  const Pass pass = pass_now();
  check_membership(unit);
  if (context_.streams.apart() && (!unit.gather_order().holds() || may_be_written(unit))) {
    tree_.order_gathers_after_writes();
  }
  watch_shards(unit);
  try {
    all_gathers_ += unit.buffers.begin_gather(memory_.parameters(), pass, may_alias_);
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

void Gatherer::finish_gather(Unit& unit) {
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

void Gatherer::release(Unit& unit) {
  const bool may_park = unit.buffers.park_group() && !in_backward() && !unit.use.writable();
  if (may_park && !written(unit)) unit.buffers.park(memory_.parameters());
  unit.use.note_released();
  unit.buffers.release(memory_.parameters());
  remove_from_residency(unit);
  trace_.sample_memory();
}

void Gatherer::remove_from_residency(Unit& unit) {
  residency_.remove(unit);
  prefetches_wasted_ += unit.note_released() ? 1 : 0;
}

void Gatherer::release_if_idle(Unit& unit) {
  base::MutexLock lock(unit.mutex);
  if (unit.buffers.gathering()) finish_gather(unit);
  if (unit.buffers.gathered() && !unit.use.pinned()) release(unit);
}

void Gatherer::release_after_last_use(Unit& unit) {
  base::MutexLock lock(unit.mutex);
  if (!unit.buffers.gathered() || unit.buffers.used_nbytes() == 0) return;
  if (unit.use.pinned()) {
    unit.use.release_when_unpinned();
  } else {
    release(unit);
  }
}

void Gatherer::release_after_backward(const std::function<bool(const Unit&)>& stays) {
  for (const auto& unit : tree_.units()) {
    if (!stays(*unit)) release_if_idle(*unit);
    base::MutexLock lock(unit->mutex);
    unit->buffers.unpark(memory_.parameters());
    if (unit->buffers.sharded()) unit->await_readers();
    if (unit->stays_after_backward() && unit->buffers.gathered()) {
      unit->note_requested();
      left_by_backward_.push_back(unit.get());
    }
  }
}

void Gatherer::note_changed(Unit& unit) {
  base::MutexLock lock(unit.mutex);
  unit.buffers.unpark(memory_.parameters());
  unit.buffers.set_park_group(nullptr);
  unit.buffers.release_kept(memory_.parameters());
  residency_.refile(unit);
}

void Gatherer::unshard(const std::vector<Unit*>& units) {
  for (Unit* unit : units) {
    base::MutexLock lock(unit->mutex);
    ensure_issued(*unit);
    unit->note_requested();
  }
}

void Gatherer::wait_for(const std::vector<Unit*>& units) {
  for (Unit* unit : units) {
    base::MutexLock lock(unit->mutex);
    if (unit->buffers.gathering()) ensure_gathered(*unit);
  }
}

void Gatherer::reshard(const std::vector<Unit*>& units) {
  for (Unit* unit : units) {
    release_if_idle(*unit);
    base::MutexLock lock(unit->mutex);
    unit->buffers.unpark(memory_.parameters());
  }
}

void Gatherer::reshard_all() {
  end_visit();
  reshard(tree_.all());
}

// ---------------------------------------------------------------- test mode, numbers

void Gatherer::set_strict(bool on) {
  reshard_all();
  strict_ = on;
  may_alias_ = !on;
  memory_.parameters().set_poison(on);
}

int64_t Gatherer::largest_window(Pass pass) const {
  const auto nbytes = [](const ScheduledUnit& unit) {
    base::MutexLock lock(as_unit(unit).mutex);
    const int64_t of_block = as_unit(unit).buffers.block_nbytes();
    return of_block > 0 ? schedule::BlockPlaces::rounded(of_block) : 0;
  };
  return schedule::largest_window(residency_.last_pass(pass), context_.options.overlap.max_gathered_units, nbytes);
}

void Gatherer::count(EngineStats& stats) const {
  stats.all_gathers = all_gathers_;
  stats.prefetches = prefetches_;
  stats.prefetches_wasted = prefetches_wasted_;
  stats.gathered_units = residency_.count();
  stats.peak_gathered_units = residency_.peak_count();
}

}  // namespace fsdp::engine
