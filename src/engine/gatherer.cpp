#include "engine/gatherer.h"

#include <c10/util/StringUtil.h>

#include <utility>

#include "schedule/block_places.h"
#include "schedule/memory_bounds.h"
#include "torch_seams/gradient_hooks.h"

namespace fsdp::engine {

using schedule::ScheduledUnit;

using seams::in_backward;

Gatherer::Gatherer(const UnitContext& context, UnitTree& tree, MemoryAccount& memory, base::TraceRecorder& trace)
    : context_(context),
      tree_(tree),
      memory_(memory),
      trace_(trace),
      residency_(context.options.overlap.max_gathered_units),
      cycle_(context, tree, memory, trace, residency_) {}

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
    if (!unit.use.forbidden()) cycle_.issue(unit);
  }
  for (Unit* wanted : unit.switches().prefetched(pass_now())) {
    if (gather_ahead(*wanted)) wanted->note_requested();
  }
  if (!in_backward() || context_.options.overlap.backward_prefetch == BackwardPrefetch::kPre) prefetch();
}

// Parameters that backward has left gathered are gathered ahead again if an optimizer has written to the shards since.
void Gatherer::release_what_is_stale() {
  for (Unit* unit : std::exchange(left_by_backward_, {})) {
    base::MutexLock lock(unit->mutex);
    cycle_.release_if_stale(*unit);
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
  for (ScheduledUnit* victim : residency_.to_release_for(unit, pass)) {
    base::MutexLock lock(as_unit(*victim).mutex);
    cycle_.release_if_idle(as_unit(*victim));
  }
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
  for (ScheduledUnit* expected : ahead.to_gather) gather_ahead(as_unit(*expected));
  if (ahead.held_back) note_held_back(as_unit(*ahead.held_back));
}

// Returns whether there was anything to gather.
bool Gatherer::gather_ahead(Unit& unit) {
  bool issued = false;
  explaining(unit, [&] {
    base::MutexLock lock(unit.mutex);
    issued = cycle_.issue_ahead(unit);
  });
  return issued;
}

void Gatherer::note_held_back(Unit& unit) {
  base::MutexLock lock(unit.mutex);
  if (unit.buffers.sharded()) unit.times.note_held_back(trace_.now());
}

// ---------------------------------------------------------------- uses

void Gatherer::pin(Unit& unit) {
  explaining(unit, [&] {
    base::MutexLock lock(unit.mutex);
    TORCH_CHECK(!unit.use.forbidden(), "fsdp: ", unit.where(),
                ": a parameter was used inside summon_full_params(rank0_only): there only rank 0 has it");
    cycle_.gather(unit);
    unit.buffers.use_on_current_stream();
    unit.note_used();
    unit.use.pin();
  });
}

void Gatherer::unpin(Unit& unit) {
  base::MutexLock lock(unit.mutex);
  if (unit.use.unpin() && unit.buffers.gathered() && (strict_ || unit.use.to_be_released())) cycle_.release(unit);
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
  if (!cycle_.backward_relies_on(unit)) cycle_.notice_writes(unit);
}

// ---------------------------------------------------------------- writes to shards

// [Note: readers that wait for each other]
// The rank that writes waits until no other rank reads this unit's shards. Ranks may write to units in different
// orders, because an optimizer passes over leaves without elements. Therefore each rank first ends its own reading of
// all units; otherwise two ranks would wait for each other. Optimizers inside backward need not do this: they write in
// the order of reductions, which is the same on all ranks, while the next units are being read.
void Gatherer::prepare_write_to_shards(Unit& unit) {
  if (!unit.flat_parameters().shares_shards()) return;
  if (!in_backward()) {
    for (ScheduledUnit* gathered : residency_.gathered()) {
      base::MutexLock lock(as_unit(*gathered).mutex);
      cycle_.end_reading(as_unit(*gathered));
    }
  }
  base::MutexLock lock(unit.mutex);
  cycle_.release_views_of_shards(unit);
  unit.await_readers();
}

void Gatherer::prepare_write_through(Unit& unit) {
  prepare_write_to_shards(unit);
  base::MutexLock lock(unit.mutex);
  cycle_.release_copies(unit);
  if (context_.options.memory.apart()) {  // the host is about to write to memory that a device may still read
    base::DeviceEvent gathered;
    gathered.record(context_.streams.gather);
    gathered.synchronize();
  }
}

// ---------------------------------------------------------------- gathering and releasing on request

void Gatherer::unshard(const std::vector<Unit*>& units) {
  for (Unit* unit : units) {
    base::MutexLock lock(unit->mutex);
    cycle_.issue(*unit);
    unit->note_requested();
  }
}

void Gatherer::wait_for(const std::vector<Unit*>& units) {
  for (Unit* unit : units) {
    base::MutexLock lock(unit->mutex);
    if (unit->buffers.gathering()) cycle_.gather(*unit);
  }
}

void Gatherer::reshard(const std::vector<Unit*>& units) {
  for (Unit* unit : units) {
    base::MutexLock lock(unit->mutex);
    cycle_.release_if_idle(*unit);
    cycle_.unpark(*unit);
  }
}

void Gatherer::reshard_all() {
  end_visit();
  reshard(tree_.all());
}

void Gatherer::release_after_last_use(Unit& unit) {
  base::MutexLock lock(unit.mutex);
  if (!unit.buffers.gathered() || unit.buffers.used_nbytes() == 0) return;
  if (unit.use.pinned()) {
    unit.use.release_when_unpinned();
  } else {
    cycle_.release(unit);
  }
}

void Gatherer::release_after_backward(const std::function<bool(const Unit&)>& stays) {
  for (const auto& unit : tree_.units()) {
    const bool released = !stays(*unit);
    base::MutexLock lock(unit->mutex);
    if (released) cycle_.release_if_idle(*unit);
    cycle_.unpark(*unit);
    if (unit->buffers.sharded()) unit->await_readers();
    if (unit->stays_after_backward() && unit->buffers.gathered()) {
      unit->note_requested();
      left_by_backward_.push_back(unit.get());
    }
  }
}

void Gatherer::note_changed(Unit& unit) {
  base::MutexLock lock(unit.mutex);
  cycle_.unpark(unit);
  unit.buffers.set_park_group(nullptr);
  unit.buffers.release_kept(memory_.parameters());
  residency_.refile(unit);
}

// ---------------------------------------------------------------- test mode, numbers

void Gatherer::set_strict(bool on) {
  reshard_all();
  strict_ = on;
  cycle_.set_may_alias(!on);
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
  cycle_.count(stats);
  stats.gathered_units = residency_.count();
  stats.peak_gathered_units = residency_.peak_count();
}

}  // namespace fsdp::engine
