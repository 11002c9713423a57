#include "engine/residency.h"

#include <algorithm>

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

std::optional<VisitHistory::LastUse> Residency::begin_visit(const Visit& visit, bool early) {
  std::lock_guard lock(mutex_);
  VisitHistory& visits = history(visit.pass);
  visits.visit(visit.unit);
  present_ = visit;
  visited_ = visit.unit;
  const bool stays =
      visits.returns_within(room_beside(*visit.unit), needs_no_room) || visits.ends_within(0, stays_on_purpose);
  return early && !stays ? visits.expected_last_use() : std::nullopt;
}

Residency::Visit Residency::end_visit() {
  if (!visited_) {
    return {};
  }
  std::lock_guard lock(mutex_);
  return visited_.exchange(nullptr) ? present_ : Visit{};
}

void Residency::note_last_use(const Visit& visit, const VisitHistory::LastUse& use) {
  std::lock_guard lock(mutex_);
  history(visit.pass).set_last_use(use);
}

void Residency::end_pass(Pass pass) {
  std::lock_guard lock(mutex_);
  history(pass).end();
}

std::vector<Unit*> Residency::last_pass(Pass pass) const {
  std::lock_guard lock(mutex_);
  return history(pass).last_pass();
}

void Residency::replace(const std::function<std::pair<Unit*, int64_t>(Unit*, int64_t)>& successor) {
  std::lock_guard lock(mutex_);
  forward_.replace(successor);
  backward_.replace(successor);
}

// ---------------------------------------------------------------- gathered units

void Residency::add(Unit& unit) {
  std::lock_guard lock(mutex_);
  resident_.push_back(&unit);
  unit.resident = true;
  peak_count_ = std::max(peak_count_, static_cast<int64_t>(resident_.size()));
}

void Residency::remove(Unit& unit) {
  std::lock_guard lock(mutex_);
  std::erase(resident_, &unit);
  unit.resident = false;
}

int64_t Residency::count() const {
  std::lock_guard lock(mutex_);
  return static_cast<int64_t>(resident_.size());
}

int64_t Residency::peak_count() const {
  std::lock_guard lock(mutex_);
  return peak_count_;
}

// ---------------------------------------------------------------- decisions

// [Note: which units stay gathered]
// Where the history says which units come next in this pass, these stay: as many as the limit has room for. The last
// one of a forward stays, as backward begins with it; those before it do not, as memory is at its peak there. Else the
// structure decides: when an operator of another unit comes that is neither ancestor nor descendant, the unit's module
// has ended, as module trees run depth first; of the related ones the most recent stays. Either way no more than two
// are gathered at a time by default, beside the root and units that stay gathered on purpose. A unit released too early
// is gathered again at its next use: that costs time, never correctness.
std::vector<Unit*> Residency::to_release_for(Unit& unit, std::optional<Pass> pass) {
  std::lock_guard lock(mutex_);
  const bool known = pass && history(*pass).known();
  std::vector<Unit*> victims = known ? unexpected(kept_with({&unit, *pass})) : unrelated(unit);
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

std::vector<Unit*> Residency::unexpected(const std::vector<Unit*>& expected) const {
  std::vector<Unit*> victims;
  for (Unit* other : resident_) {
    if (!stays(*other) && !contains(expected, other)) {
      victims.push_back(other);
    }
  }
  return victims;
}

std::vector<Unit*> Residency::unrelated(const Unit& unit) const {
  std::vector<Unit*> victims;
  bool related_seen = max_gathered_units_ == 1;
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

std::vector<Unit*> Residency::expected(Pass pass, size_t count) const {
  std::lock_guard lock(mutex_);
  return visited_ ? history(pass).next(count, needs_no_room) : std::vector<Unit*>();
}

bool Residency::has_room() const {
  std::lock_guard lock(mutex_);
  auto counts = [](const Unit* unit) { return !unit->keeps_gathered_after_forward() && !unit->awaits_use; };
  auto gathered = static_cast<size_t>(std::count_if(resident_.begin(), resident_.end(), counts));
  return gathered < max_gathered_units_;
}

}  // namespace fsdp
