#include "schedule/scheduled_unit.h"

#include <algorithm>

#include "schedule/module_path.h"

namespace fsdp::schedule {

// An automatic unit has no module that could still run.
bool ScheduledUnit::is_ancestor_of(const ScheduledUnit& other) const {
  if (automatic_ || this == &other) return false;
  const auto below_one_of_mine = [&](const std::string& module) {
    return std::any_of(modules_.begin(), modules_.end(),
                       [&](const std::string& mine) { return is_at_or_below(module, mine); });
  };
  return std::all_of(other.modules_.begin(), other.modules_.end(), below_one_of_mine);
}

}  // namespace fsdp::schedule
