#include "schedule/residency.h"

#include <algorithm>
#include <utility>

#include "schedule/scheduled_unit.h"

namespace fsdp::schedule {
namespace {

bool contains(const std::vector<ScheduledUnit*>& units, const ScheduledUnit* unit) {
  return std::find(units.begin(), units.end(), unit) != units.end();
}

bool stays_on_purpose(const ScheduledUnit* unit) { return unit->stays_gathered(); }

// Whether the unit is not released in this pass, whatever comes next.
bool lasts(const ScheduledUnit& unit, std::optional<Pass> pass) {
  return unit.stays_gathered() || (pass == Pass::kBackward && unit.stays_after_backward());
}

}  // namespace

// ---------------------------------------------------------------- visits

// [Note: visits that count]
// Ranks may use different parameters of a unit, and other ones in each step, so a rank may come back to a unit when
// others do not: to the root for an offset, or to a block after its child. Such a visit finds the unit gathered,
// because a unit stays gathered until its module has ended. It must not have consequences, because other ranks do not
// know of it. Therefore only visits count that every rank makes: visits of a unit that must be gathered or was gathered
// ahead, and visits of a unit that is no ancestor of the previous unit (a module that has ended runs anew). This
// requires that each rank uses at least one parameter of every unit, and that all ranks first use the units in the same
// order.
bool Residency::counts(const ScheduledUnit& unit) const {
  const bool used_before = unit.list_ && !unit.prefetched() && !unit.awaits_use();
  const bool goes_on = &unit == counted_ || (counted_ && unit.is_ancestor_of(*counted_));
  return !used_before || !(goes_on || unit.stays_gathered());
}

bool Residency::begin_visit(const Visit& visit) {
  std::lock_guard lock(mutex_);
  present_ = visit;
  visited_ = visit.unit;
  if (!counts(*visit.unit)) return false;
  counted_ = visit.unit;
  history(visit.pass).visit(visit.unit);
  return true;
}

Residency::Visit Residency::end_visit() {
  if (!visited_) return {};
  std::lock_guard lock(mutex_);
  return visited_.exchange(nullptr) ? present_ : Visit{};
}

void Residency::end_pass(Pass pass) {
  std::lock_guard lock(mutex_);
  counted_ = nullptr;
  history(pass).end();
  make_all_candidates();  // for the history of the next pass
}

std::vector<ScheduledUnit*> Residency::last_pass(Pass pass) const {
  std::lock_guard lock(mutex_);
  return history(pass).last_pass();
}

void Residency::replace(const std::function<ScheduledUnit*(ScheduledUnit*)>& successor) {
  std::lock_guard lock(mutex_);
  counted_ = nullptr;
  forward_.replace(successor);
  backward_.replace(successor);
}

// ---------------------------------------------------------------- gathered units

void Residency::add(ScheduledUnit& unit) {
  std::lock_guard lock(mutex_);
  file(unit);
  peak_count_ = std::max(peak_count_, static_cast<int64_t>(resident_.size() + staying_.size()));
}

void Residency::remove(ScheduledUnit& unit) {
  std::lock_guard lock(mutex_);
  if (!unit.list_) return;
  take_out(unit);
  for (VisitHistory* history : {&forward_, &backward_}) {
    if (max_gathered_units_ == kNoLimit && history->expects(&unit)) history->look_again();
  }
}

void Residency::refile(ScheduledUnit& unit) {
  std::lock_guard lock(mutex_);
  if (!unit.list_) return;
  take_out(unit);
  file(unit);
}

void Residency::file(ScheduledUnit& unit) {
  unit.list_ = unit.stays_gathered() ? &staying_ : &resident_;
  unit.place_ = unit.list_->insert(unit.list_->end(), &unit);
  if (unit.list_ == &resident_) make_candidate(unit);
}

void Residency::take_out(ScheduledUnit& unit) {
  std::exchange(unit.list_, nullptr)->erase(unit.place_);
  if (const auto candidate = std::exchange(unit.candidate_, std::nullopt)) candidates_.erase(*candidate);
}

void Residency::make_candidate(ScheduledUnit& unit) {
  if (!unit.candidate_) unit.candidate_ = candidates_.insert(candidates_.end(), &unit);
}

void Residency::make_all_candidates() {
  for (ScheduledUnit* unit : resident_) make_candidate(*unit);
}

std::vector<ScheduledUnit*> Residency::gathered() const {
  std::lock_guard lock(mutex_);
  std::vector<ScheduledUnit*> all(resident_.begin(), resident_.end());
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
// A unit stays gathered until its module has ended, whichever of its parameters the next operator uses. Module trees
// run depth first, so a module has ended when an operator uses another unit that is neither its ancestor nor its
// descendant. Ancestors of the unit in use need no room, like the root. Among units whose module has ended, the units
// that the history expects next in this pass stay, as many as the limit has room for. If the history knows nothing, the
// descendant that was used last stays. The last unit of a forward stays, because backward begins with it. The units
// before it do not stay, because memory is at its peak there. So by default no more than two units are gathered at a
// time, in addition to ancestors and units that stay gathered on purpose. Units that stay after backward are among
// these while backward runs; from its end to their next use, they are gathered as if the user had asked for it. A unit
// released too early is gathered again at its next use, which costs time but never correctness.
std::vector<ScheduledUnit*> Residency::to_release_for(ScheduledUnit& unit, std::optional<Pass> pass) {
  std::lock_guard lock(mutex_);
  const bool known = pass && history(*pass).known();
  std::vector<ScheduledUnit*> victims = known ? unexpected(unit, *pass) : unrelated(unit, pass);
  if (unit.list_ == &resident_) {
    resident_.splice(resident_.end(), resident_, unit.place_);
    make_candidate(unit);
  }
  return victims;
}

Residency::IsSettled* Residency::needing_no_room(Pass pass) {
  if (pass == Pass::kBackward) {
    return [](const ScheduledUnit* unit) { return lasts(*unit, Pass::kBackward) && unit->list_; };
  }
  return [](const ScheduledUnit* unit) { return lasts(*unit, Pass::kForward) && unit->list_; };
}

// Returns how many units that need room may be gathered in addition to the unit in use.
size_t Residency::room_beside(const ScheduledUnit& unit, Pass pass) const {
  return max_gathered_units_ - (lasts(unit, pass) ? 0 : 1);
}

// Returns the unit that stays although the history does not expect it in this pass, or null: if forward ends with units
// that stay gathered on purpose, the last unit that does not.
const ScheduledUnit* Residency::last_of_forward(const ScheduledUnit& unit, Pass pass) const {
  const VisitHistory& visits = history(pass);
  const bool ends = pass == Pass::kForward && unit.stays_gathered() && visits.ends_within(0, stays_on_purpose) &&
                    visits.next(1, needing_no_room(pass)).empty();
  const auto latest =
      std::find_if(resident_.rbegin(), resident_.rend(), [&](const ScheduledUnit* other) { return other != &unit; });
  return ends && latest != resident_.rend() ? *latest : nullptr;
}

bool Residency::stays(const ScheduledUnit& unit, std::optional<Pass> pass) const {
  return unit.awaits_use() || visited_ == &unit || lasts(unit, pass);
}

// While visits go on as expected, a unit that was expected stays expected until it is visited.
std::vector<ScheduledUnit*> Residency::unexpected(const ScheduledUnit& unit, Pass pass) {
  const VisitHistory& visits = history(pass);
  if (!visits.goes_on()) make_all_candidates();
  const bool unlimited = max_gathered_units_ == kNoLimit;
  const auto next =
      unlimited ? std::vector<ScheduledUnit*>() : visits.next(room_beside(unit, pass), needing_no_room(pass));
  const ScheduledUnit* last = last_of_forward(unit, pass);
  std::vector<ScheduledUnit*> victims;
  for (auto it = candidates_.begin(); it != candidates_.end();) {
    ScheduledUnit* other = *it++;
    if (unlimited ? visits.expects(other) : contains(next, other)) {
      candidates_.erase(*std::exchange(other->candidate_, std::nullopt));
    } else if (other != last && !stays(*other, pass) && !other->is_ancestor_of(unit)) {
      victims.push_back(other);
    }
  }
  return victims;
}

std::vector<ScheduledUnit*> Residency::unrelated(const ScheduledUnit& unit, std::optional<Pass> pass) const {
  std::vector<ScheduledUnit*> victims;
  bool descendant_seen = max_gathered_units_ == 1;
  for (auto it = resident_.rbegin(); it != resident_.rend(); ++it) {
    ScheduledUnit* other = *it;
    if (other == &unit || stays(*other, pass) || other->is_ancestor_of(unit)) continue;
    const bool kept = unit.is_ancestor_of(*other) && !std::exchange(descendant_seen, true);
    if (!kept) victims.push_back(other);
  }
  return victims;
}

// Whether a unit that is gathered, or will be, takes room.
bool Residency::takes_room(const ScheduledUnit& unit, Pass pass) const {
  const ScheduledUnit* visited = visited_;
  return !lasts(unit, pass) && !unit.awaits_use() && !(visited && unit.is_ancestor_of(*visited));
}

// Returns how many more units there is room for.
size_t Residency::room(Pass pass) const {
  if (max_gathered_units_ == kNoLimit) return kNoLimit;
  const auto taken = static_cast<size_t>(
      std::count_if(resident_.begin(), resident_.end(), [&](const auto* unit) { return takes_room(*unit, pass); }));
  return max_gathered_units_ - std::min(taken, max_gathered_units_);
}

Residency::Ahead Residency::to_gather_ahead(Pass pass, size_t count) {
  std::lock_guard lock(mutex_);
  VisitHistory& visits = history(pass);
  count = std::min(count, max_gathered_units_);
  if (count == kNoLimit) return {visits.all_next()};
  Ahead ahead;
  size_t left = room(pass);
  const std::vector<ScheduledUnit*> next = visits.next(count + 1, needing_no_room(pass));
  for (size_t i = 0; i < next.size(); ++i) {
    ScheduledUnit* unit = next[i];
    if (unit->list_) continue;
    if (i >= count || left == 0) {
      ahead.held_back = unit;
      break;
    }
    ahead.to_gather.push_back(unit);
    left -= takes_room(*unit, pass) ? 1 : 0;
  }
  return ahead;
}

}  // namespace fsdp::schedule
