#include "engine/residency.h"

#include <algorithm>
#include <utility>

#include "engine/unit.h"

namespace fsdp {
namespace {

bool contains(const std::vector<Unit*>& units, const Unit* unit) {
  return std::find(units.begin(), units.end(), unit) != units.end();
}

// Units that stay gathered on purpose, and those of them that are gathered.
bool stays_on_purpose(const Unit* unit) { return unit->keeps_gathered_after_forward(); }
bool needs_no_room(const Unit* unit) { return stays_on_purpose(unit) && unit->resident; }

}  // namespace

// ---------------------------------------------------------------- visits

// [Note: visits that count]
// Ranks may use different parameters of a unit, other ones in each step, and so come back to a unit or not: to the root
// for an offset, to a block after its child. Such a visit finds the unit gathered, because a unit stays gathered until
// its module has ended, and must not have consequences, as other ranks do not know of it. So visits count that every
// rank makes: of a unit that has to be gathered or was gathered ahead, and of one that is no ancestor of the unit
// before it (a module that has ended runs anew). This asks of ranks that each uses at least one parameter of every
// unit, and that units are first used in the same order.
bool Residency::counts(const Unit& unit) const {
  const bool used_before = unit.resident && !unit.prefetched && !unit.awaits_use;
  const bool goes_on = &unit == counted_ || (counted_ && unit.is_ancestor_of(*counted_));
  return !used_before || !(goes_on || stays_on_purpose(&unit));
}

bool Residency::begin_visit(const Visit& visit) {
  std::lock_guard lock(mutex_);
  present_ = visit;
  visited_ = visit.unit;
  if (!counts(*visit.unit)) {
    return false;
  }
  counted_ = visit.unit;
  history(visit.pass).visit(visit.unit);
  return true;
}

Residency::Visit Residency::end_visit() {
  if (!visited_) {
    return {};
  }
  std::lock_guard lock(mutex_);
  return visited_.exchange(nullptr) ? present_ : Visit{};
}

void Residency::end_pass(Pass pass) {
  std::lock_guard lock(mutex_);
  counted_ = nullptr;
  history(pass).end();
}

std::vector<Unit*> Residency::last_pass(Pass pass) const {
  std::lock_guard lock(mutex_);
  return history(pass).last_pass();
}

void Residency::replace(const std::function<Unit*(Unit*)>& successor) {
  std::lock_guard lock(mutex_);
  counted_ = nullptr;
  forward_.replace(successor);
  backward_.replace(successor);
}

// ---------------------------------------------------------------- gathered units

void Residency::add(Unit& unit) {
  std::lock_guard lock(mutex_);
  if (stays_on_purpose(&unit)) {
    unit.place_among_staying = staying_.size();
    staying_.push_back(&unit);
  } else {
    resident_.push_back(&unit);
  }
  unit.resident = true;
  peak_count_ = std::max(peak_count_, static_cast<int64_t>(resident_.size() + staying_.size()));
}

void Residency::remove(Unit& unit) {
  std::lock_guard lock(mutex_);
  if (const std::optional<size_t> place = unit.place_among_staying) {
    staying_[*place] = staying_.back();  // which may be the unit itself
    staying_[*place]->place_among_staying = place;
    staying_.pop_back();
    unit.place_among_staying.reset();
  } else {
    std::erase(resident_, &unit);
  }
  unit.resident = false;
}

std::vector<Unit*> Residency::gathered() const {
  std::lock_guard lock(mutex_);
  std::vector<Unit*> all = resident_;
  all.insert(all.end(), staying_.begin(), staying_.end());
  return all;
}

int64_t Residency::count() const {
  std::lock_guard lock(mutex_);
  return static_cast<int64_t>(resident_.size() + staying_.size());
}

int64_t Residency::peak_count() const {
  std::lock_guard lock(mutex_);
  return peak_count_;
}

// ---------------------------------------------------------------- decisions

// [Note: which units stay gathered]
// A unit stays until its module has ended, on whichever of its parameters the next operator works: module trees run
// depth first, so that is when an operator of another unit comes that is neither ancestor nor descendant. Ancestors of
// the unit in use need no room, like the root. Of units whose module has ended, those stay that the history expects
// next in this pass, as many as the limit has room for; where it knows nothing, the descendant that was used last. The
// last unit of a forward stays, as backward begins with it; those before it do not, as memory is at its peak there. So
// no more than two are gathered at a time by default, beside ancestors and units that stay gathered on purpose. A unit
// released too early is gathered again at its next use: that costs time, never correctness.
std::vector<Unit*> Residency::to_release_for(Unit& unit, std::optional<Pass> pass) {
  std::lock_guard lock(mutex_);
  const bool known = pass && history(*pass).known();
  std::vector<Unit*> victims = known ? unexpected(unit, kept_with({&unit, *pass})) : unrelated(unit);
  if (auto it = std::find(resident_.begin(), resident_.end(), &unit); it != resident_.end()) {
    std::rotate(it, it + 1, resident_.end());
  }
  return victims;
}

// How many units that need room may be gathered beside the one in use.
size_t Residency::room_beside(const Unit& unit) const {
  return max_gathered_units_ - (stays_on_purpose(&unit) ? 0 : 1);
}

// What is to stay gathered beside a visit's unit that was found in the history. Where forward ends with units that stay
// on purpose, that is the last one that does not.
std::vector<Unit*> Residency::kept_with(const Visit& visit) const {
  const VisitHistory& visits = history(visit.pass);
  std::vector<Unit*> kept = visits.next(room_beside(*visit.unit), needs_no_room);
  const bool at_end = kept.empty() && visits.ends_within(0, stays_on_purpose);
  if (at_end && visit.pass == Pass::kForward && stays_on_purpose(visit.unit)) {
    auto latest = std::find_if(resident_.rbegin(), resident_.rend(),
                               [&](const Unit* unit) { return unit != visit.unit && !needs_no_room(unit); });
    if (latest != resident_.rend()) {
      kept.push_back(*latest);
    }
  }
  return kept;
}

bool Residency::stays(const Unit& unit) const {
  return unit.keeps_gathered_after_forward() || unit.awaits_use || visited_ == &unit;
}

std::vector<Unit*> Residency::unexpected(const Unit& unit, const std::vector<Unit*>& expected) const {
  std::vector<Unit*> victims;
  for (Unit* other : resident_) {
    if (!stays(*other) && !other->is_ancestor_of(unit) && !contains(expected, other)) {
      victims.push_back(other);
    }
  }
  return victims;
}

std::vector<Unit*> Residency::unrelated(const Unit& unit) const {
  std::vector<Unit*> victims;
  bool descendant_seen = max_gathered_units_ == 1;
  for (auto it = resident_.rbegin(); it != resident_.rend(); ++it) {
    Unit* other = *it;
    if (other == &unit || stays(*other) || other->is_ancestor_of(unit)) {
      continue;
    }
    const bool kept = unit.is_ancestor_of(*other) && !std::exchange(descendant_seen, true);
    if (!kept) {
      victims.push_back(other);
    }
  }
  return victims;
}

std::vector<Unit*> Residency::expected(Pass pass, size_t count) const {
  std::lock_guard lock(mutex_);
  return history(pass).next(count, needs_no_room);
}

bool Residency::has_room() const {
  std::lock_guard lock(mutex_);
  const Unit* visited = visited_;
  auto needs_room = [&](const Unit* unit) {
    return !stays_on_purpose(unit) && !unit->awaits_use && !(visited && unit->is_ancestor_of(*visited));
  };
  auto gathered = static_cast<size_t>(std::count_if(resident_.begin(), resident_.end(), needs_room));
  return gathered < max_gathered_units_;
}

}  // namespace fsdp
