#include "schedule/reduction_order.h"

#include <algorithm>
#include <string>
#include <unordered_map>
#include <utility>

#include "schedule/module_path.h"
#include "schedule/scheduled_unit.h"

namespace fsdp::schedule {
namespace {

// Returns, for each unit, the index of the last of its descendants, or its own index if that is later.
std::vector<size_t> last_places(const std::vector<ScheduledUnit*>& units) {
  std::unordered_map<std::string, std::vector<size_t>> by_module;
  std::vector<size_t> last(units.size());
  for (size_t i = 0; i < units.size(); ++i) {
    last[i] = i;
    if (!units[i]->automatic()) {
      for (const std::string& module : units[i]->module_fqns()) by_module[module].push_back(i);
    }
  }
  for (size_t i = 0; i < units.size(); ++i) {
    for_each_ancestor(units[i]->module_fqns().front(), [&](const std::string& name) {
      const auto found = by_module.find(name);
      if (found == by_module.end()) return;
      for (size_t above : found->second) {
        if (last[above] < i && units[above]->is_ancestor_of(*units[i])) last[above] = i;
      }
    });
  }
  return last;
}

// Moves each unit after the last of its descendants.
std::vector<ScheduledUnit*> after_descendants(const std::vector<ScheduledUnit*>& units) {
  const std::vector<size_t> last = last_places(units);
  std::vector<ScheduledUnit*> order;
  std::unordered_map<size_t, std::vector<ScheduledUnit*>> waiting;  // by the index that they wait for
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

void ReductionOrder::note_forward(ScheduledUnit& unit) {
  std::lock_guard lock(mutex_);
  if (used_.insert(&unit).second) first_uses_.push_back(&unit);
}

void ReductionOrder::begin_backward(std::function<bool(const ScheduledUnit&)> takes_part) {
  std::lock_guard lock(mutex_);
  takes_part_ = std::move(takes_part);
  turn_ = 0;
  used_.clear();
  if (std::vector<ScheduledUnit*> uses = std::exchange(first_uses_, {}); !uses.empty() && uses != ordered_uses_) {
    order_ = after_descendants({uses.rbegin(), uses.rend()});
    ordered_uses_ = std::move(uses);
  }
}

std::vector<ScheduledUnit*> ReductionOrder::due(const ScheduledUnit& next,
                                                const std::function<bool(const ScheduledUnit&)>& captures) {
  std::lock_guard lock(mutex_);
  std::vector<ScheduledUnit*> units;
  for (; turn_ < order_.size(); ++turn_) {
    ScheduledUnit* unit = order_[turn_];
    if (is_left_out(unit)) continue;
    if (unit == &next || unit->is_related_to(next) || !captures(*unit)) break;
    units.push_back(unit);
  }
  return units;
}

std::vector<ScheduledUnit*> ReductionOrder::rest() {
  std::lock_guard lock(mutex_);
  std::vector<ScheduledUnit*> units;
  for (; turn_ < order_.size(); ++turn_) {
    if (!is_left_out(order_[turn_])) units.push_back(order_[turn_]);
  }
  return units;
}

void ReductionOrder::note_captured(const ScheduledUnit& unit, bool captured) {
  std::lock_guard lock(mutex_);
  if (captured) {
    idle_.erase(&unit);
  } else {
    idle_.insert(&unit);
  }
}

void ReductionOrder::reorder(const std::vector<ScheduledUnit*>& units) {
  std::lock_guard lock(mutex_);
  const std::unordered_set<const ScheduledUnit*> given(units.begin(), units.end());
  auto next = units.begin();
  for (ScheduledUnit*& unit : first_uses_) {
    if (given.count(unit) > 0) {
      next = std::find_if(next, units.end(), [&](const ScheduledUnit* one) { return used_.count(one) > 0; });
      unit = *next++;
    }
  }
}

void ReductionOrder::replace(const std::function<ScheduledUnit*(ScheduledUnit*)>& successor) {
  std::lock_guard lock(mutex_);
  for (std::vector<ScheduledUnit*>* units : {&first_uses_, &ordered_uses_, &order_}) {
    std::vector<ScheduledUnit*> replaced;
    std::unordered_set<const ScheduledUnit*> known;
    for (ScheduledUnit* unit : *units) {
      if (ScheduledUnit* now = successor(unit); known.insert(now).second) replaced.push_back(now);
    }
    *units = std::move(replaced);
  }
  idle_.clear();
  used_ = {first_uses_.begin(), first_uses_.end()};
}

}  // namespace fsdp::schedule
