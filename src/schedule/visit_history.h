// The execution order as it was seen, and what it says of what comes next.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <unordered_map>
#include <vector>

namespace fsdp::schedule {

class ScheduledUnit;

// [Note: prediction by history]
// A visit is a run of operators on one unit, without one on another in between. The history of one phase (forward or
// backward) is the sequence of its visits, pass after pass, with a mark where a pass ends. To predict, the latest visit
// is looked up in the history: while each visit is the one that followed before, the place moves along with it; when
// another comes, the place is where most of the latest visits stand in the same order, the most recent such place (in
// the same pass at least two of them: a root that is used first and last would expect the first layer after the last).
// What stood there next is the prediction. It needs no notion of an iteration: evaluation between steps, several
// forwards before one backward and skipped layers change the order, which costs a wrong prediction at each change, and
// is learned by having happened once. Predictions do not reach beyond the end of a pass, after which parameters may
// change.
//
// A visit costs the same however many units there are: while predictions hold it is one comparison, and else the places
// of this one unit are looked at, the latest kCandidates of them.
//
// Only visits count that are the same on all ranks ([Note: visits that count] in residency.cpp), and every decision
// that the engine takes by it follows from their sequence alone: so ranks issue the same collectives in the same order
// whatever it predicts, and whichever of a unit's parameters each of them uses.
//
// Threads: the caller's lock.
class VisitHistory {
 public:
  // A visit begins.
  void visit(ScheduledUnit* unit);
  // The pass ends; nothing when nothing came since the last end.
  void end();
  // Visits of a unit that is no more become visits of its successor. What followed the latest visit is not known any
  // more.
  void replace(const std::function<ScheduledUnit*(ScheduledUnit*)>& successor);
  // The units visited in the last pass that has ended, in order.
  std::vector<ScheduledUnit*> last_pass() const;

  // Whether the latest visit was found in the history.
  bool known() const { return place_.has_value(); }
  // Whether it is the one that was expected, so that what was expected before still is, but for its own unit.
  bool goes_on() const { return goes_on_; }
  // Units that need no room of their own, and so are passed over.
  using Ignore = bool (*)(const ScheduledUnit*);
  // The units, other than that of the latest visit, that come next: each once, in order, at most `count`. Looks past at
  // most kLookAhead visits that are not among them.
  std::vector<ScheduledUnit*> next(size_t count, const Ignore& ignore) const;
  // All that come before the pass ends, some perhaps more than once: those that no earlier call has returned since
  // goes_on() was false, or since look_again().
  std::vector<ScheduledUnit*> all_next();
  void look_again() { looked_until_ = 0; }
  // Whether the unit comes again before the pass ends.
  bool expects(const ScheduledUnit* unit) const;
  // Whether the pass ends before more than `count` others are visited.
  bool ends_within(size_t count, const Ignore& ignore) const;

 private:
  struct Coming {
    std::vector<ScheduledUnit*> units;
    bool to_the_end;  // of the pass
  };
  Coming coming(size_t count, const Ignore& ignore) const;
  void add(ScheduledUnit* unit);
  void find_place();
  size_t matching(size_t place) const;
  void trim();

  std::vector<ScheduledUnit*> visits_;  // null: the end of a pass
  std::optional<size_t> place_;         // of the visit that the latest one repeats
  bool goes_on_ = false;
  size_t looked_until_ = 0;  // all_next() has returned what is before this place
  std::unordered_map<const ScheduledUnit*, std::vector<size_t>> places_;  // of each unit in visits_, ascending
};

}  // namespace fsdp::schedule
