// Which units are gathered: at first use, ahead of it, and until when.
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "engine/engine.h"
#include "torch_seams/gradient_hooks.h"

namespace fsdp {

namespace {

bool in_backward() { return seams::current_backward() != -1; }

bool contains(const std::vector<Unit*>& units, const Unit* unit) {
  return std::find(units.begin(), units.end(), unit) != units.end();
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
  if (last_entered_ != &unit) {
    begin_visit(unit);
  }
  std::lock_guard lock(unit.mutex);
  gather_to_use(unit);
  unit.visit.note(parameter);
  ++unit.pins;
}

void Engine::hold(Unit& unit) {
  prepare();
  observe_backward();
  end_visit();
  make_room_for(unit, nullptr);
  std::lock_guard lock(unit.mutex);
  gather_to_use(unit);
  ++unit.pins;
}

void Engine::gather_to_use(Unit& unit) {
  TORCH_CHECK(!unit.only_on_rank_0, "fsdp: ", unit.where(),
              ": a parameter was used inside summon_full_params(rank0_only): there only rank 0 has it");
  ensure_gathered(unit);
  unit.awaits_use = false;
  unit.prefetched = false;
}

bool Engine::leave(Unit& unit) {
  std::lock_guard lock(unit.mutex);
  if (--unit.pins > 0 || !unit.gathered()) {
    return false;
  }
  bool over = unit.visit.over();
  if (strict_ || unit.release_when_unpinned || over) {
    release(unit);
  }
  return over && !(in_backward() && options_.overlap.backward_prefetch == BackwardPrefetch::kPost);
}

// What comes next is issued before this unit's gather is waited for.
void Engine::begin_visit(Unit& unit) {
  const Unit* before = last_entered_;
  end_visit();
  VisitHistory& history = in_backward() ? backward_history_ : forward_history_;
  std::optional<VisitHistory::LastUse> last_use;
  {
    std::lock_guard lock(mutex_);
    history.visit(&unit);
    note_use(unit, before);
    visited_in_ = &history;
    if (may_release_early(unit) && !history.returns_within(max_others(), needs_no_room())) {
      last_use = history.expected_last_use();
    }
    last_entered_ = &unit;
    visit_began_ = trace_.now();
  }
  make_room_for(unit, &history);
  reduce_before(unit);
  {
    std::lock_guard lock(unit.mutex);
    unit.visit.begin(last_use);
    if (!unit.only_on_rank_0) {
      begin_gather(unit);
    }
  }
  for (Unit* wanted : wanted_after(unit)) {
    wanted->awaits_use = begin_prefetch(*wanted) || wanted->awaits_use;
  }
  if (!in_backward() || options_.overlap.backward_prefetch == BackwardPrefetch::kPre) {
    prefetch();
  }
}

const std::vector<Unit*>& Engine::wanted_after(const Unit& unit) const {
  return in_backward() ? unit.backward_prefetch : unit.forward_prefetch;
}

void Engine::end_visit() {
  Unit* unit = last_entered_.exchange(nullptr);
  if (!unit) {
    return;
  }
  VisitHistory::LastUse use;
  {
    std::lock_guard lock(unit->mutex);
    use = unit->visit.last();
    unit->visit.begin(std::nullopt);
  }
  std::lock_guard lock(mutex_);
  visited_in_->set_last_use(use);
  bool forward = visited_in_ == &forward_history_;
  trace_.record(TraceTrack::kCompute, unit->name(), forward ? Pass::kForward : Pass::kBackward, visit_began_);
}

// Whether the unit may be released before another one is used.
bool Engine::may_release_early(const Unit& unit) const {
  return in_backward() ? !unit.is_root && !stays_gathered_after_backward(unit) : !unit.keeps_gathered_after_forward();
}

// Views of parameters do not gather, but remember the version of what they view: an optimizer step must have counted
// before, or autograd takes the view for older than the parameter.
void Engine::enter_view(Unit& unit) {
  std::lock_guard lock(unit.mutex);
  if (!backward_relies_on(unit)) {
    notice_shard_writes(unit);
  }
}

// ---------------------------------------------------------------- room

// [Note: which units stay gathered]
// Where the history says which units come next in this pass, these stay: as many as the limit has room for. Else, and
// at the end of a pass, the structure decides: when an operator of another unit comes that is neither ancestor nor
// descendant, the unit's module has ended, as module trees run depth first; of the related ones the most recent stays.
// Either way no more than two are gathered at a time by default, beside the root and units that stay gathered on
// purpose. A unit released too early is gathered again at its next use: that costs time, never correctness.
void Engine::make_room_for(Unit& unit, const VisitHistory* history) {
  std::vector<Unit*> victims;
  {
    std::lock_guard lock(mutex_);
    std::vector<Unit*> expected = history ? expected_next(*history, max_others()) : std::vector<Unit*>();
    victims = expected.empty() ? unrelated(unit) : unexpected(expected);
    if (auto it = std::find(resident_.begin(), resident_.end(), &unit); it != resident_.end()) {
      std::rotate(it, it + 1, resident_.end());
    }
  }
  for (Unit* victim : victims) {
    release_if_idle(*victim);
  }
}

// Units that are gathered and stay so on purpose.
VisitHistory::Ignore Engine::needs_no_room() const {
  return [](const Unit* unit) { return unit->keeps_gathered_after_forward() && unit->resident; };
}

bool Engine::stays(const Unit& unit) const {
  return unit.keeps_gathered_after_forward() || unit.awaits_use || last_entered_ == &unit;
}

size_t Engine::max_others() const { return options_.overlap.max_gathered_units - 1; }

std::vector<Unit*> Engine::expected_next(const VisitHistory& history, size_t count) const {
  return history.next(count, needs_no_room());
}

std::vector<Unit*> Engine::unexpected(const std::vector<Unit*>& expected) const {
  std::vector<Unit*> victims;
  for (Unit* other : resident_) {
    if (!stays(*other) && !contains(expected, other)) {
      victims.push_back(other);
    }
  }
  return victims;
}

std::vector<Unit*> Engine::unrelated(const Unit& unit) const {
  std::vector<Unit*> victims;
  bool related_seen = max_others() == 0;
  for (auto it = resident_.rbegin(); it != resident_.rend(); ++it) {
    Unit* other = *it;
    if (other == &unit || stays(*other)) {
      continue;
    }
    bool kept = other->is_related_to(unit) && !related_seen;
    related_seen |= kept;
    if (!kept) {
      victims.push_back(other);
    }
  }
  return victims;
}

// ---------------------------------------------------------------- prefetching

void Engine::prefetch() {
  bool predicts =
      in_backward() ? options_.overlap.backward_prefetch != BackwardPrefetch::kNone : options_.overlap.forward_prefetch;
  bool one_by_one = in_backward() && options_.overlap.backward_prefetch == BackwardPrefetch::kPost;
  size_t ahead = one_by_one ? 1 : std::min(options_.overlap.max_gathered_units, units_.size());
  std::vector<Unit*> expected;
  {
    std::lock_guard lock(mutex_);
    const Unit* unit = last_entered_;
    if (predicts && unit && wanted_after(*unit).empty()) {
      expected = expected_next(in_backward() ? backward_history_ : forward_history_, ahead + 1);
    }
  }
  for (size_t i = 0; i < expected.size(); ++i) {
    if (i < ahead && has_room()) {
      begin_prefetch(*expected[i]);
    } else if (hold_back(*expected[i])) {
      break;
    }
  }
}

// Whether there is anything to hold back.
bool Engine::hold_back(Unit& unit) {
  std::lock_guard lock(unit.mutex);
  if (unit.gathered() || unit.gathering()) {
    return false;
  }
  if (unit.held_back == 0) {
    unit.held_back = trace_.now();
  }
  return true;
}

bool Engine::has_room() const {
  std::lock_guard lock(mutex_);
  auto counts = [](const Unit* unit) { return !unit->keeps_gathered_after_forward() && !unit->awaits_use; };
  return std::count_if(resident_.begin(), resident_.end(), counts) <
         static_cast<int64_t>(std::min<size_t>(options_.overlap.max_gathered_units, units_.size() + 1));
}

// Whether a gather was issued. Backward does not touch units whose shards were written since their forward: should it
// use one, the use throws.
bool Engine::begin_prefetch(Unit& unit) {
  std::lock_guard lock(unit.mutex);
  bool stale = unit.stamp && *unit.stamp != unit.shard_version();
  if (unit.gathered() || unit.gathering() || !unit.groups().shard || unit.only_on_rank_0 || (stale && in_backward())) {
    return false;
  }
  if (stale) {
    drop_stale(unit);
  }
  gather_ahead(unit);
  unit.prefetched = true;
  std::lock_guard engine_lock(mutex_);
  ++stats_.prefetches;
  return true;
}

// ---------------------------------------------------------------- gathering and releasing

bool Engine::backward_relies_on(const Unit& unit) const {
  return in_backward() && (unit.used_outside_backward || !at::GradMode::is_enabled());
}

void Engine::notice_shard_writes(Unit& unit) {
  bool relies = backward_relies_on(unit);
  unit.used_outside_backward |= !in_backward();
  if (!unit.stamp || *unit.stamp == unit.shard_version()) {
    return;
  }
  TORCH_CHECK(!relies, "fsdp: ", unit.where(),
              ": its shards were written between forward and backward (an optimizer step?), so that this backward "
              "would use other values than its forward. Run backward before the step, or forward again");
  drop_stale(unit);
}

void Engine::drop_stale(Unit& unit) {
  unit.invalidate_saved_values();
  unit.unpark(parameter_pool_);
  if (unit.gathering()) {
    finish_gather(unit);  // what is under way is stale
  }
  if (unit.gathered() && unit.unsharded_nbytes() > 0) {
    TORCH_CHECK(unit.pins == 0, "fsdp: ", unit.where(), ": its shards were written while an operator uses it");
    release(unit);
  }
  unit.stamp = unit.shard_version();
}

void Engine::begin_gather(Unit& unit) {
  notice_shard_writes(unit);
  if (!unit.gathered() && !unit.gathering()) {
    gather_ahead(unit);
  }
}

void Engine::gather_ahead(Unit& unit) {
  Pass pass = in_backward() ? Pass::kBackward : Pass::kForward;
  unit.begin_gather(parameter_pool_, pass, may_alias_);
  if (!unit.stamp) {
    unit.stamp = unit.shard_version();
  }
  unit.gather_pass = pass;
  unit.gather_issued = trace_.now();
  trace_.record(TraceTrack::kLimiter, unit.name(), pass, std::exchange(unit.held_back, 0));
  std::lock_guard lock(mutex_);
  resident_.push_back(&unit);
  unit.resident = true;
  stats_.peak_gathered_units = std::max(stats_.peak_gathered_units, static_cast<int64_t>(resident_.size()));
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
  std::lock_guard lock(mutex_);
  std::erase(resident_, &unit);
  unit.resident = false;
  stats_.prefetches_wasted += unit.prefetched.exchange(false);
}

void Engine::release(Unit& unit) {
  if (!in_backward() && unit.write_scopes == 0) {
    unit.park(parameter_pool_);
  }
  unit.awaits_use = false;
  unit.release(parameter_pool_);
  forget_resident(unit);
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
