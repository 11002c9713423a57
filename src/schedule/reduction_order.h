// The order in which a backward reduces units' gradients: the same on all ranks, whichever parameters each rank uses.
// This class only decides; the engine acts.
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
// Ranks may differ in which parameters get gradients, and in when a unit has all of them, but they must issue
// reductions in the same order. Therefore the order is fixed before backward begins, from facts that all ranks share:
// units are reduced in the reverse order of their first uses in the forwards since the last backward, but a unit comes
// after its descendants, whose modules run inside its own. A rank issues the next reduction in this order when it has
// captured a gradient of that unit and backward has come to an unrelated unit. The remaining reductions are issued when
// backward ends, whether or not this rank has captured anything. Then the ranks tell each other which gradients they
// have captured late, or of units that are not in the order, and reduce these as well. If no rank has captured a
// gradient of a unit, the next backward leaves its reduction out, unless a rank captures one then.
//
// Threads: safe.
class ReductionOrder {
 public:
  // Notes that a forward that records a graph, or has it recorded later, begins to use the unit.
  void note_forward(ScheduledUnit& unit);
  // Fixes the order. If there was no forward since the last call, the order stays the same. `takes_part`: whether the
  // backward reduces a unit at all.
  void begin_backward(std::function<bool(const ScheduledUnit&)> takes_part);
  // Returns, in order, the units whose turn has come when backward comes to `next`, each once in a backward.
  // `captures`: whether this rank has captured a gradient of a unit.
  std::vector<ScheduledUnit*> due(const ScheduledUnit& next, const std::function<bool(const ScheduledUnit&)>& captures);
  // Returns, in order, the units whose turn has not come. Afterwards none is left.
  std::vector<ScheduledUnit*> rest();
  // Notes whether any rank has captured a gradient of the unit in this backward.
  void note_captured(const ScheduledUnit& unit, bool captured);
  // Reorders the units in `units` that the current forward has used: they get their order in `units` instead of this
  // rank's.
  void reorder(const std::vector<ScheduledUnit*>& units);
  // Replaces units that no longer exist by their successors.
  void replace(const std::function<ScheduledUnit*(ScheduledUnit*)>& successor);

 private:
  bool is_left_out(const ScheduledUnit* unit) const { return idle_.count(unit) > 0 || !takes_part_(*unit); }

  std::mutex mutex_;
  std::vector<ScheduledUnit*> first_uses_;         // since the last backward began
  std::unordered_set<const ScheduledUnit*> used_;  // the units in first_uses_
  std::vector<ScheduledUnit*> ordered_uses_;       // the first uses that order_ was made from
  std::vector<ScheduledUnit*> order_;
  std::function<bool(const ScheduledUnit&)> takes_part_;
  size_t turn_ = 0;                                // index in order_ in the current backward
  std::unordered_set<const ScheduledUnit*> idle_;  // units of which the last backward captured nothing on any rank
};

}  // namespace fsdp::schedule
