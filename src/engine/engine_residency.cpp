// The engine's first half: units are gathered at their first use or ahead of it, and released.
#include <ATen/core/grad_mode.h>
#include <c10/util/StringUtil.h>

#include <algorithm>

#include "engine/engine.h"
#include "engine/out_of_memory.h"
#include "torch_seams/gradient_hooks.h"

namespace fsdp {

namespace {

bool in_backward() { return seams::current_backward() != -1; }
Pass pass_now() { return in_backward() ? Pass::kBackward : Pass::kForward; }

template <typename Gather>
void gather_explained(Engine& engine, const Unit& unit, const Gather& gather) {
  explaining_out_of_memory(
      engine, [&] { return c10::str("gathering unit '", unit.name(), "'"); }, gather);
}

}  // namespace

// ---------------------------------------------------------------- uses and visits

void Engine::observe_backward() {
  if (backward_.changed()) {
    backward_.observe(shared_from_this());
  }
}

void Engine::enter(Unit& unit, int64_t parameter) {
  if (!prepared_) {
    prepare();
  }
  observe_backward();
  try {
    if (residency_.visited() != &unit) {
      gather_explained(*this, unit, [&] { begin_visit(unit); });
    }
    gather_explained(*this, unit, [&] {
      std::lock_guard lock(unit.mutex);
      gather_to_use(unit);
      ++unit.pins;
    });
  } catch (c10::Error& error) {
    error.add_context(
        c10::str(unit.where(), ": the operator that came next uses parameter '", unit.parameter(parameter).fqn, "'"));
    throw;
  }
}

void Engine::hold(Unit& unit) {
  prepare();
  observe_backward();
  end_visit();
  make_room_for(unit, std::nullopt);
  gather_explained(*this, unit, [&] {
    std::lock_guard lock(unit.mutex);
    gather_to_use(unit);
    ++unit.pins;
  });
}

void Engine::gather_to_use(Unit& unit) {
  TORCH_CHECK(!unit.only_on_rank_0, "fsdp: ", unit.where(),
              ": a parameter was used inside summon_full_params(rank0_only): there only rank 0 has it");
  ensure_gathered(unit);
  unit.use_on_current_stream();
  unit.note_used();
}

void Engine::leave(Unit& unit) {
  std::lock_guard lock(unit.mutex);
  if (--unit.pins == 0 && unit.gathered() && (strict_ || unit.release_when_unpinned)) {
    release(unit);
  }
}

// The gathers of the next units are issued before this unit's gather is waited for.
void Engine::begin_visit(Unit& unit) {
  note_use(unit);
  end_visit();
  if (!in_backward() && at::GradMode::is_enabled()) {
    reduction_order_.note_forward(unit);
  }
  const bool counts = residency_.begin_visit({&unit, pass_now(), trace_.now()});
  if (counts) {
    make_room_for(unit, pass_now());
  }
  reduce_before(unit);
  if (!counts) {
    return;
  }
  {
    std::lock_guard lock(unit.mutex);
    if (!unit.only_on_rank_0) {
      begin_gather(unit);
    }
  }
  for (Unit* wanted : wanted_after(unit)) {
    gather_explained(*this, *wanted, [&] {
      if (begin_prefetch(*wanted)) {
        wanted->note_requested();
      }
    });
  }
  if (!in_backward() || options_.overlap.backward_prefetch == BackwardPrefetch::kPre) {
    prefetch();
  }
}

const std::vector<Unit*>& Engine::wanted_after(const Unit& unit) const {
  return in_backward() ? unit.backward_prefetch : unit.forward_prefetch;
}

void Engine::end_visit() {
  if (schedule::Residency::Visit visit = residency_.end_visit(); visit.unit) {
    trace_.record(TraceTrack::kCompute, as_unit(*visit.unit).name(), visit.pass, visit.began);
  }
}

// Making a view of a parameter gathers nothing, but the view remembers the version of the parameter. An optimizer step
// must have changed that version before, otherwise autograd takes the view for older than the parameter.
void Engine::enter_view(Unit& unit) {
  std::lock_guard lock(unit.mutex);
  if (!backward_relies_on(unit)) {
    notice_shard_writes(unit);
  }
}

// ---------------------------------------------------------------- room and prefetching

void Engine::make_room_for(Unit& unit, std::optional<Pass> pass) {
  for (schedule::ScheduledUnit* victim : residency_.to_release_for(unit, pass)) {
    release_if_idle(as_unit(*victim));
  }
}

void Engine::prefetch() {
  const OverlapOptions& overlap = options_.overlap;
  bool predicts = in_backward() ? overlap.backward_prefetch != BackwardPrefetch::kNone : overlap.forward_prefetch;
  const schedule::ScheduledUnit* visited = residency_.visited();  // null when a backward begins
  if (!predicts || (visited && !wanted_after(as_unit(*visited)).empty())) {
    return;
  }
  const bool one_by_one = in_backward() && overlap.backward_prefetch == BackwardPrefetch::kPost;
  const schedule::Residency::Ahead ahead =
      residency_.to_gather_ahead(pass_now(), one_by_one ? 1 : overlap.max_gathered_units);
  for (schedule::ScheduledUnit* expected : ahead.to_gather) {
    Unit& unit = as_unit(*expected);
    gather_explained(*this, unit, [&] { begin_prefetch(unit); });
  }
  if (ahead.held_back) {
    note_held_back(as_unit(*ahead.held_back));
  }
}

// Notes, for the trace, the time since which the limiter has held back the unit's gather.
void Engine::note_held_back(Unit& unit) {
  std::lock_guard lock(unit.mutex);
  if (unit.held_back == 0 && !unit.gathered() && !unit.gathering()) {
    unit.held_back = trace_.now();
  }
}

// Issues the gather of an expected unit and returns true, or returns false if there is nothing to issue. Backward skips
// units whose shards were written since their forward; if it uses one, the use throws.
bool Engine::begin_prefetch(Unit& unit) {
  std::lock_guard lock(unit.mutex);
  bool stale = unit.shards_written();
  if (unit.gathered() || unit.gathering() || !unit.groups().shard || unit.only_on_rank_0 || (stale && in_backward())) {
    return false;
  }
  if (stale) {
    drop_stale(unit);
  }
  gather_ahead(unit);
  unit.note_prefetched();
  ++prefetches_;
  return true;
}

// ---------------------------------------------------------------- gathering and releasing

bool Engine::backward_relies_on(const Unit& unit) const {
  return in_backward() && (unit.used_outside_backward || !at::GradMode::is_enabled());
}

void Engine::notice_shard_writes(Unit& unit) {
  bool relies = backward_relies_on(unit);
  unit.used_outside_backward |= !in_backward();
  if (!unit.shards_written()) {
    return;
  }
  TORCH_CHECK(!relies, "fsdp: ", unit.where(),
              ": its shards were written between forward and backward (an optimizer step?), so that this backward "
              "would use other values than its forward. Run backward before the step, or run forward again");
  drop_stale(unit);
}

void Engine::drop_stale(Unit& unit) {
  unit.invalidate_saved_values();
  if (unit.gathering()) {
    finish_gather(unit);  // the values being gathered are stale
  }
  if (unit.gathered() && unit.holds_copies()) {
    TORCH_CHECK(unit.pins == 0, "fsdp: ", unit.where(), ": its shards were written while an operator uses it");
    release(unit);
  }
  unit.unpark(parameter_pool_);
  unit.stamp = unit.shard_version();
}

void Engine::begin_gather(Unit& unit) {
  notice_shard_writes(unit);
  if (!unit.gathered() && !unit.gathering()) {
    gather_ahead(unit);
  }
}

void Engine::gather_ahead(Unit& unit) {
  Pass pass = pass_now();
  unit.begin_gather(parameter_pool_, pass, may_alias_);
  if (!unit.stamp) {
    unit.stamp = unit.shard_version();
  }
  unit.gather_pass = pass;
  unit.gather_issued = trace_.now();
  trace_.record(TraceTrack::kLimiter, unit.name(), pass, std::exchange(unit.held_back, 0));
  residency_.add(unit);
  trace_.sample_memory();
}

void Engine::ensure_gathered(Unit& unit) {
  begin_gather(unit);
  if (unit.gathering()) {
    finish_gather(unit);
  }
}

void Engine::finish_gather(Unit& unit) {
  int64_t waiting = trace_.now();
  try {
    unit.finish_gather();
  } catch (...) {
    forget_resident(unit);
    throw;
  }
  trace_.record(TraceTrack::kWait, unit.name(), unit.gather_pass, waiting);
  trace_.record(TraceTrack::kGather, unit.name(), unit.gather_pass, unit.gather_issued);
}

void Engine::forget_resident(Unit& unit) {
  residency_.remove(unit);
  prefetches_wasted_ += unit.note_released() ? 1 : 0;
}

void Engine::release(Unit& unit) {
  if (!in_backward() && unit.write_scopes == 0 && !unit.shards_written()) {
    unit.park(parameter_pool_);
  }
  unit.release(parameter_pool_);
  forget_resident(unit);
  trace_.sample_memory();
}

void Engine::release_if_idle(Unit& unit) {
  std::lock_guard lock(unit.mutex);
  if (unit.gathering()) {
    finish_gather(unit);
  }
  if (unit.gathered() && unit.pins == 0) {
    release(unit);
  }
}

}  // namespace fsdp
