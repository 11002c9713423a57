#include "schedule/visit_history.h"

#include <algorithm>
#include <unordered_set>
#include <utility>

namespace fsdp::schedule {
namespace {

constexpr size_t kMaxVisits = 8192;  // or kVisitsOfUnit of each unit, if that is more
constexpr size_t kVisitsOfUnit = 8;  // so that several passes are known
constexpr size_t kCandidates = 256;  // places of a unit that are compared to find the place again
constexpr size_t kLookAhead = 64;    // visits that are passed over to find the next units
constexpr size_t kFewUnits = 16;
constexpr size_t kContext = 16;    // visits compared to find the place again
constexpr size_t kWithinPass = 2;  // of these, how many must agree with a place in the same pass

}  // namespace

void VisitHistory::visit(ScheduledUnit* unit) {
  discard_old();
  if (visits_.empty()) {
    add(nullptr);  // the first pass begins where another might have ended
  }
  add(unit);
  size_t latest = visits_.size() - 1;
  goes_on_ = place_ && *place_ + 1 < latest && visits_[*place_ + 1] == unit;
  if (goes_on_) {
    ++*place_;
  } else {
    find_place();
    look_again();
  }
}

void VisitHistory::end() {
  if (!visits_.empty() && visits_.back()) visit(nullptr);
}

void VisitHistory::add(ScheduledUnit* unit) {
  places_[unit].push_back(visits_.size());
  visits_.push_back(unit);
}

// Successive visits of units that have become one unit become one visit.
void VisitHistory::replace(const std::function<ScheduledUnit*(ScheduledUnit*)>& successor) {
  const std::vector<ScheduledUnit*> before = std::exchange(visits_, {});
  places_.clear();
  for (ScheduledUnit* old : before) {
    ScheduledUnit* unit = old ? successor(old) : nullptr;
    if (!unit || visits_.empty() || visits_.back() != unit) add(unit);
  }
  place_.reset();
  goes_on_ = false;
}

std::vector<ScheduledUnit*> VisitHistory::last_pass() const {
  std::vector<ScheduledUnit*> units;
  size_t end = visits_.size();
  while (end > 0 && visits_[end - 1]) --end;
  for (size_t i = end; i > 1 && visits_[i - 2]; --i) units.push_back(visits_[i - 2]);
  std::reverse(units.begin(), units.end());
  return units;
}

void VisitHistory::find_place() {
  place_.reset();
  const std::vector<size_t>& ends = places_[nullptr];
  auto before_pass = ends.rbegin();
  if (!visits_.back()) {
    ++before_pass;  // the latest visit is the end of this pass
  }
  const std::vector<size_t>& places = places_[visits_.back()];
  size_t best = kWithinPass - 1;
  size_t candidates = kCandidates;
  for (auto it = places.rbegin() + 1; it != places.rend() && best < kContext && candidates > 0; ++it, --candidates) {
    if (!place_ && before_pass != ends.rend() && *it < *before_pass) {
      best = 0;  // from here on, places in passes that have ended
    }
    if (size_t matches = matching(*it); matches > best) {
      best = matches;
      place_ = *it;
    }
  }
}

// Returns how many visits up to `place` equal the latest ones.
size_t VisitHistory::matching(size_t place) const {
  size_t latest = visits_.size() - 1;
  size_t count = 0;
  while (count < kContext && count <= place && visits_[place - count] == visits_[latest - count]) ++count;
  return count;
}

void VisitHistory::discard_old() {
  if (visits_.size() < std::max(kMaxVisits, kVisitsOfUnit * places_.size())) return;
  const std::vector<ScheduledUnit*> before = std::exchange(visits_, {});
  const size_t discarded = before.size() / 2;
  places_.clear();
  std::for_each(before.begin() + static_cast<ptrdiff_t>(discarded), before.end(),
                [this](ScheduledUnit* unit) { add(unit); });
  place_ = place_ && *place_ >= discarded ? std::optional<size_t>(*place_ - discarded) : std::nullopt;
  looked_until_ -= std::min(looked_until_, discarded);
}

VisitHistory::Coming VisitHistory::coming(size_t count, const Ignore& ignore) const {
  const ScheduledUnit* current = visits_.back();
  std::vector<ScheduledUnit*> units;
  std::unordered_set<const ScheduledUnit*>
      known;  // used if `count` is so large that a search through `units` would be slow
  size_t passed_over = 0;
  size_t i = *place_ + 1;
  for (; i < visits_.size() && visits_[i] && units.size() < count && passed_over < kLookAhead; ++i) {
    ScheduledUnit* unit = visits_[i];
    const bool is_known =
        count > kFewUnits ? known.count(unit) > 0 : std::find(units.begin(), units.end(), unit) != units.end();
    if (unit == current || is_known || ignore(unit)) {
      ++passed_over;
      continue;
    }
    units.push_back(unit);
    if (count > kFewUnits) known.insert(unit);
  }
  return {std::move(units), i == visits_.size() || !visits_[i]};
}

std::vector<ScheduledUnit*> VisitHistory::next(size_t count, const Ignore& ignore) const {
  return place_ ? coming(count, ignore).units : std::vector<ScheduledUnit*>();
}

std::vector<ScheduledUnit*> VisitHistory::all_next() {
  std::vector<ScheduledUnit*> units;
  if (place_) {
    looked_until_ = std::max(looked_until_, *place_ + 1);
    for (; looked_until_ < visits_.size() && visits_[looked_until_]; ++looked_until_) {
      units.push_back(visits_[looked_until_]);
    }
  }
  return units;
}

bool VisitHistory::expects(const ScheduledUnit* unit) const {
  const auto after = [this](const ScheduledUnit* one) {
    const auto places = places_.find(one);
    if (!place_ || places == places_.end()) return visits_.size();
    const auto next = std::upper_bound(places->second.begin(), places->second.end(), *place_);
    return next == places->second.end() ? visits_.size() : *next;
  };
  return after(unit) < after(nullptr);
}

bool VisitHistory::ends_within(size_t count, const Ignore& ignore) const {
  if (!place_) return false;
  const Coming coming = this->coming(count + 1, ignore);
  return coming.to_the_end && coming.units.size() <= count;
}

}  // namespace fsdp::schedule
