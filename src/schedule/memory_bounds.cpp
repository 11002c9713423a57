#include "schedule/memory_bounds.h"

#include <algorithm>
#include <unordered_map>

#include "schedule/scheduled_unit.h"

namespace fsdp::schedule {
namespace {

// A window of visits that follow one another. Each of their units counts once.
class Window {
 public:
  explicit Window(const std::function<int64_t(const ScheduledUnit&)>& nbytes) : nbytes_(nbytes) {}
  size_t num_units() const { return visits_.size(); }
  int64_t sum() const { return sum_; }
  void add(const ScheduledUnit* unit) {
    if (visits_[unit]++ == 0) sum_ += nbytes_(*unit);
  }
  void remove(const ScheduledUnit* unit) {
    const auto found = visits_.find(unit);
    if (--found->second == 0) {
      sum_ -= nbytes_(*unit);
      visits_.erase(found);
    }
  }

 private:
  const std::function<int64_t(const ScheduledUnit&)>& nbytes_;
  std::unordered_map<const ScheduledUnit*, size_t> visits_;
  int64_t sum_ = 0;
};

}  // namespace

int64_t largest_window(const std::vector<ScheduledUnit*>& order, size_t at_a_time,
                       const std::function<int64_t(const ScheduledUnit&)>& nbytes) {
  std::vector<ScheduledUnit*> visits;
  std::copy_if(order.begin(), order.end(), std::back_inserter(visits),
               [](const ScheduledUnit* unit) { return !unit->has_own_memory(); });
  Window window(nbytes);
  int64_t most = 0;
  size_t end = 0;
  for (const ScheduledUnit* first : visits) {
    for (; end < visits.size() && window.num_units() < at_a_time; ++end) window.add(visits[end]);
    most = std::max(most, window.sum());
    window.remove(first);
  }
  return most;
}

}  // namespace fsdp::schedule
