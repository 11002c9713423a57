#include "engine/reduction_schedule.h"

#include <algorithm>
#include <string>
#include <unordered_map>
#include <utility>

#include "engine/unit.h"

namespace fsdp {
namespace {

// Calls `visit` with a module's name and with those of its ancestors, "" last.
template <typename Visit>
void for_each_ancestor(const std::string& fqn, const Visit& visit) {
  for (std::string name = fqn;;) {
    visit(name);
    if (name.empty()) {
      return;
    }
    const size_t dot = name.rfind('.');
    name.resize(dot == std::string::npos ? 0 : dot);
  }
}

// For each unit, the place of the last of its descendants, or its own if that is later.
std::vector<size_t> last_places(const std::vector<Unit*>& units) {
  std::unordered_map<std::string, std::vector<size_t>> by_module;
  std::vector<size_t> last(units.size());
  for (size_t i = 0; i < units.size(); ++i) {
    last[i] = i;
    if (!units[i]->automatic()) {
      for (const AnnotatedModule& module : units[i]->modules()) {
        by_module[module.fqn].push_back(i);
      }
    }
  }
  for (size_t i = 0; i < units.size(); ++i) {
    for_each_ancestor(units[i]->modules().front().fqn, [&](const std::string& name) {
      const auto found = by_module.find(name);
      if (found == by_module.end()) {
        return;
      }
      for (size_t above : found->second) {
        if (last[above] < i && units[above]->is_ancestor_of(*units[i])) {
          last[above] = i;
        }
      }
    });
  }
  return last;
}

// Moves each unit after the last of its descendants.
std::vector<Unit*> after_descendants(const std::vector<Unit*>& units) {
  const std::vector<size_t> last = last_places(units);
  std::vector<Unit*> order;
  std::unordered_map<size_t, std::vector<Unit*>> waiting;  // by the place that they wait for
  for (size_t i = 0; i < units.size(); ++i) {
    if (last[i] > i) {
      waiting[last[i]].push_back(units[i]);
      continue;
    }
    order.push_back(units[i]);
    if (const auto here = waiting.find(i); here != waiting.end()) {
      order.insert(order.end(), here->second.rbegin(), here->second.rend());
    }
  }
  return order;
}

}  // namespace

void ReductionSchedule::note_forward(Unit& unit) {
  std::lock_guard lock(mutex_);
  if (used_.insert(&unit).second) {
    first_uses_.push_back(&unit);
  }
}

void ReductionSchedule::begin_backward(std::function<bool(const Unit&)> takes_part) {
  std::lock_guard lock(mutex_);
  takes_part_ = std::move(takes_part);
  turn_ = 0;
  used_.clear();
  if (std::vector<Unit*> uses = std::exchange(first_uses_, {}); !uses.empty() && uses != ordered_uses_) {
    order_ = after_descendants({uses.rbegin(), uses.rend()});
    ordered_uses_ = std::move(uses);
  }
}

std::vector<Unit*> ReductionSchedule::due(const Unit& next, const std::function<bool(const Unit&)>& captures) {
  std::lock_guard lock(mutex_);
  std::vector<Unit*> units;
  for (; turn_ < order_.size(); ++turn_) {
    Unit* unit = order_[turn_];
    if (is_left_out(unit)) {
      continue;
    }
    if (unit == &next || unit->is_related_to(next) || !captures(*unit)) {
      break;
    }
    units.push_back(unit);
  }
  return units;
}

std::vector<Unit*> ReductionSchedule::rest() {
  std::lock_guard lock(mutex_);
  std::vector<Unit*> units;
  for (; turn_ < order_.size(); ++turn_) {
    if (!is_left_out(order_[turn_])) {
      units.push_back(order_[turn_]);
    }
  }
  return units;
}

void ReductionSchedule::note_captured(const Unit& unit, bool captured) {
  std::lock_guard lock(mutex_);
  if (captured) {
    idle_.erase(&unit);
  } else {
    idle_.insert(&unit);
  }
}

void ReductionSchedule::reorder(const std::vector<Unit*>& units) {
  std::lock_guard lock(mutex_);
  const std::unordered_set<const Unit*> given(units.begin(), units.end());
  auto next = units.begin();
  for (Unit*& unit : first_uses_) {
    if (given.count(unit) > 0) {
      next = std::find_if(next, units.end(), [&](const Unit* one) { return used_.count(one) > 0; });
      unit = *next++;
    }
  }
}

void ReductionSchedule::replace(const std::function<Unit*(Unit*)>& successor) {
  std::lock_guard lock(mutex_);
  for (std::vector<Unit*>* units : {&first_uses_, &ordered_uses_, &order_}) {
    std::vector<Unit*> replaced;
    std::unordered_set<const Unit*> known;
    for (Unit* unit : *units) {
      if (Unit* now = successor(unit); known.insert(now).second) {
        replaced.push_back(now);
      }
    }
    *units = std::move(replaced);
  }
  idle_.clear();
  used_ = {first_uses_.begin(), first_uses_.end()};
}

}  // namespace fsdp
