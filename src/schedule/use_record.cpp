#include "schedule/use_record.h"

#include <algorithm>
#include <sstream>
#include <utility>

namespace fsdp::schedule {

void UseRecord::add(ScheduledUnit* member, std::vector<std::string> fqns) {
  indices_[member] = members_.size();
  members_.push_back({member, std::move(fqns)});
}

void UseRecord::visit(const ScheduledUnit* unit, bool together) {
  const ScheduledUnit* before = std::exchange(latest_, unit);
  auto index = indices_.find(unit);
  if (index == indices_.end()) {
    ++others_;
    return;
  }
  Member& member = members_[index->second];
  if (member.visits++ == 0) {
    member.first_visit = ++visits_;
    member.others_before = others_;
    member.together = together && before && before == latest_new_;
    latest_new_ = unit;
  }
}

void UseRecord::visit_in_given_order() {
  std::unordered_map<std::string, ScheduledUnit*> by_fqn;
  for (const Member& member : members_) {
    for (const std::string& fqn : member.fqns) by_fqn[fqn] = member.unit;
  }
  for (const std::vector<std::string>& together : options_.order) {
    if (together.empty()) visit(nullptr, false);
    for (const std::string& fqn : together) visit(by_fqn.at(fqn), &fqn != &together.front());
  }
}

// Returns the median, because several forwards before the first backward visit every member several times.
int64_t UseRecord::usual_visits() const {
  std::vector<int64_t> visits;
  for (const Member& member : members_) {
    if (member.visits > 0) visits.push_back(member.visits);
  }
  if (visits.empty()) return 0;
  auto middle = visits.begin() + static_cast<ptrdiff_t>(visits.size() / 2);
  std::nth_element(visits.begin(), middle, visits.end());
  return *middle;
}

std::vector<const UseRecord::Member*> UseRecord::in_order() const {
  std::vector<const Member*> sorted;
  for (const Member& member : members_) sorted.push_back(&member);
  std::stable_sort(sorted.begin(), sorted.end(), [](const Member* a, const Member* b) {
    return (a->visits == 0) != (b->visits == 0) ? a->visits > 0 : a->first_visit < b->first_visit;
  });
  return sorted;
}

std::vector<UseRecord::Use> UseRecord::order() const {
  int64_t usual = usual_visits();
  std::vector<Use> uses;
  const Member* before = nullptr;
  for (const Member* member : in_order()) {
    bool joins =
        before && before->others_before == member->others_before && (before->visits > 0) == (member->visits > 0);
    if (!before || !member->together) uses.push_back({{}, false, joins});
    uses.back().units.push_back(member->unit);
    uses.back().returns |= member->visits > usual;
    before = member;
  }
  return uses;
}

std::string UseRecord::order_text() const {
  std::ostringstream out;
  for (const Use& use : order()) {
    out << use.units.size() << ' ' << use.returns << ' ' << use.joins << ' ';
    for (const ScheduledUnit* unit : use.units) out << indices_.at(unit) << ' ';
  }
  return out.str();
}

std::vector<UseRecord::Use> UseRecord::order_from(const std::string& text) const {
  std::vector<Use> uses;
  std::istringstream in(text);
  size_t count, index;
  for (Use use; in >> count >> use.returns >> use.joins; uses.push_back(use)) {
    use.units.clear();
    while (use.units.size() < count && in >> index) use.units.push_back(members_.at(index).unit);
  }
  return uses;
}

}  // namespace fsdp::schedule
