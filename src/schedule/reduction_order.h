// The order in which a backward reduces units' gradients: the same on all ranks, whichever parameters each of them
// uses. Decides only; the engine acts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <unordered_set>
#include <vector>

namespace fsdp::schedule {

class ScheduledUnit;

// [Note: the order of reductions]
// Which parameters get gradients, and when a unit has all of them, may differ between ranks; the order in which they
// issue reductions must not. So the order is fixed before backward begins, by what ranks have in common: units are
// reduced in the reverse order of their first uses in the forwards since the last backward, but a unit after its
// descendants, whose modules run inside its own. A rank issues the next reduction in this order when it has captured
// something of that unit and backward has come to an unrelated one. What is left is issued when backward ends, whether
// or not this rank has captured anything. Then the ranks tell one another what they have captured late, or of units
// that are not in the order, and reduce that as well. Where none of them has captured anything of a unit, the next
// backward leaves its reduction out, unless one does.
//
// Threads: safe.
class ReductionOrder {
 public:
  // A forward that records a graph begins to use the unit.
  void note_forward(ScheduledUnit& unit);
  // Fixes the order. Without a forward since the last time: the order of then. `takes_part`: whether the backward
  // reduces a unit at all.
  void begin_backward(std::function<bool(const ScheduledUnit&)> takes_part);
  // The units whose turn has come when backward comes to `next`, in order, each once a backward. `captures`: whether
  // this rank has captured something of a unit.
  std::vector<ScheduledUnit*> due(const ScheduledUnit& next, const std::function<bool(const ScheduledUnit&)>& captures);
  // The units whose turn has not come, in order; afterwards none is left.
  std::vector<ScheduledUnit*> rest();
  // What all ranks together have found: whether one of them has captured something of the unit in this backward.
  void note_captured(const ScheduledUnit& unit, bool captured);
  // Gives those of `units` that the present forward has used the order that they have here, instead of this rank's.
  void reorder(const std::vector<ScheduledUnit*>& units);
  // Units that are no more become their successors.
  void replace(const std::function<ScheduledUnit*(ScheduledUnit*)>& successor);

 private:
  bool is_left_out(const ScheduledUnit* unit) const { return idle_.count(unit) > 0 || !takes_part_(*unit); }

  std::mutex mutex_;
  std::vector<ScheduledUnit*> first_uses_;         // since the last backward began
  std::unordered_set<const ScheduledUnit*> used_;  // the same
  std::vector<ScheduledUnit*> ordered_uses_;       // the first uses of which order_ was made
  std::vector<ScheduledUnit*> order_;
  std::function<bool(const ScheduledUnit&)> takes_part_;
  size_t turn_ = 0;                                // in order_, of the present backward
  std::unordered_set<const ScheduledUnit*> idle_;  // of which the last backward captured nothing on any rank
};

}  // namespace fsdp::schedule
