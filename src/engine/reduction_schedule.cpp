#include "engine/reduction_schedule.h"

#include <algorithm>
#include <string>
#include <utility>

#include "engine/unit.h"

namespace fsdp {
namespace {

// Names of modules that have units below them.
std::unordered_set<std::string> names_of_ancestors(const std::vector<Unit*>& units) {
  std::unordered_set<std::string> names;
  for (const Unit* unit : units) {
    std::string fqn = unit->modules().front().fqn;
    while (!fqn.empty()) {
      const size_t dot = fqn.rfind('.');
      fqn.resize(dot == std::string::npos ? 0 : dot);
      if (!names.insert(fqn).second) {
        break;
      }
    }
  }
  return names;
}

// Moves each unit after the last of its descendants.
std::vector<Unit*> after_descendants(const std::vector<Unit*>& units) {
  const std::unordered_set<std::string> ancestors = names_of_ancestors(units);
  const auto has_descendants = [&](const Unit* unit) {
    return std::any_of(unit->modules().begin(), unit->modules().end(),
                       [&](const AnnotatedModule& module) { return ancestors.count(module.fqn) > 0; });
  };
  std::vector<Unit*> order;
  std::vector<Unit*> waiting;  // for their descendants, which follow in `units`
  for (size_t i = 0; i < units.size(); ++i) {
    const auto comes = [&](const Unit* unit) {
      return std::any_of(units.begin() + static_cast<ptrdiff_t>(i) + 1, units.end(),
                         [unit](const Unit* other) { return unit->is_ancestor_of(*other); });
    };
    if (has_descendants(units[i]) && comes(units[i])) {
      waiting.push_back(units[i]);
      continue;
    }
    order.push_back(units[i]);
    for (auto it = waiting.rbegin(); it != waiting.rend(); ++it) {
      if ((*it)->is_ancestor_of(*units[i]) && !comes(*it)) {
        order.push_back(std::exchange(*it, nullptr));
      }
    }
    std::erase(waiting, nullptr);
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
  auto next = units.begin();
  for (Unit*& unit : first_uses_) {
    if (std::find(units.begin(), units.end(), unit) != units.end()) {
      next = std::find_if(next, units.end(), [&](const Unit* one) { return used_.count(one) > 0; });
      unit = *next++;
    }
  }
}

void ReductionSchedule::replace(const std::function<Unit*(Unit*)>& successor) {
  std::lock_guard lock(mutex_);
  for (std::vector<Unit*>* units : {&first_uses_, &ordered_uses_, &order_}) {
    std::vector<Unit*> replaced;
    for (Unit* unit : *units) {
      Unit* now = successor(unit);
      if (std::find(replaced.begin(), replaced.end(), now) == replaced.end()) {
        replaced.push_back(now);
      }
    }
    *units = std::move(replaced);
  }
  idle_.clear();
  used_ = {first_uses_.begin(), first_uses_.end()};
}

}  // namespace fsdp
