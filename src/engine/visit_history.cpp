#include "engine/visit_history.h"

#include <algorithm>
#include <utility>

namespace fsdp {
namespace {

constexpr size_t kMaxVisits = 8192;
constexpr size_t kContext = 16;    // visits compared to find the place again
constexpr size_t kWithinPass = 2;  // of these, how many must agree with a place in the same pass

}  // namespace

void VisitHistory::visit(Unit* unit) {
  trim();
  if (visits_.empty()) {
    visits_.push_back(nullptr);  // the first pass begins where another might have ended
  }
  visits_.push_back(unit);
  size_t latest = visits_.size() - 1;
  if (place_ && *place_ + 1 < latest && visits_[*place_ + 1] == unit) {
    ++*place_;
  } else {
    find_place();
  }
}

void VisitHistory::end() {
  if (!visits_.empty() && visits_.back()) {
    visit(nullptr);
  }
}

// Visits of units that have become one unit are one visit.
void VisitHistory::replace(const std::function<Unit*(Unit*)>& successor) {
  std::vector<Unit*> replaced;
  for (Unit* old : visits_) {
    Unit* unit = old ? successor(old) : nullptr;
    if (!unit || replaced.empty() || replaced.back() != unit) {
      replaced.push_back(unit);
    }
  }
  visits_ = std::move(replaced);
  place_.reset();
}

std::vector<Unit*> VisitHistory::last_pass() const {
  std::vector<Unit*> units;
  size_t end = visits_.size();
  while (end > 0 && visits_[end - 1]) {
    --end;
  }
  for (size_t i = end; i > 1 && visits_[i - 2]; --i) {
    units.push_back(visits_[i - 2]);
  }
  std::reverse(units.begin(), units.end());
  return units;
}

void VisitHistory::find_place() {
  place_.reset();
  size_t best = kWithinPass - 1;
  for (size_t place = visits_.size() - 1; place-- > 0 && best < kContext;) {
    size_t matches = matching(place);
    if (matches > best) {
      best = matches;
      place_ = place;
    } else if (!place_ && !visits_[place]) {
      best = 0;  // from here on passes that have ended
    }
  }
}

// How many visits up to `place` equal the latest ones.
size_t VisitHistory::matching(size_t place) const {
  size_t latest = visits_.size() - 1;
  size_t count = 0;
  while (count < kContext && count <= place && visits_[place - count] == visits_[latest - count]) {
    ++count;
  }
  return count;
}

void VisitHistory::trim() {
  if (visits_.size() < kMaxVisits) {
    return;
  }
  size_t dropped = visits_.size() / 2;
  visits_.erase(visits_.begin(), visits_.begin() + static_cast<ptrdiff_t>(dropped));
  place_ = place_ && *place_ >= dropped ? std::optional<size_t>(*place_ - dropped) : std::nullopt;
}

std::vector<Unit*> VisitHistory::next(size_t count, const Ignore& ignore) const {
  std::vector<Unit*> units;
  if (!place_) {
    return units;
  }
  Unit* current = visits_.back();
  for (size_t i = *place_ + 1; i < visits_.size() && visits_[i] && units.size() < count; ++i) {
    Unit* unit = visits_[i];
    if (unit != current && !ignore(unit) && std::find(units.begin(), units.end(), unit) == units.end()) {
      units.push_back(unit);
    }
  }
  return units;
}

bool VisitHistory::ends_within(size_t count, const Ignore& ignore) const {
  return place_ && next(count + 1, ignore).size() <= count;
}

}  // namespace fsdp
