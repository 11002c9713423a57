// The execution order as it was observed, and predictions from it.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <unordered_map>
#include <vector>

namespace fsdp::schedule {

class ScheduledUnit;

// [Note: prediction by history]
// A visit is a run of operators on one unit, without an operator on another unit in between. The history of one phase
// (forward or backward) is the sequence of its visits, pass after pass, with a mark at the end of each pass. To
// predict, the latest visit is looked up in the history. While each visit is the one that followed before, the place in
// the history moves along with it. When another visit comes, the new place is where most of the latest visits stand in
// the same order, and the most recent such place. In the same pass at least two visits must agree: otherwise a root
// that is used first and last would expect the first layer after the last. The prediction is what came next at that
// place. It needs no notion of an iteration: evaluation between steps, several forwards before one backward and skipped
// layers change the order. Each change costs a wrong prediction, and is learned when it has happened once. Predictions
// do not reach beyond the end of a pass, after which parameters may change.
//
// The cost of a visit does not depend on the number of units: while predictions hold it is one comparison, otherwise
// the places of this one unit are looked at, the latest kCandidates of them.
//
// Only visits that are the same on all ranks count ([Note: visits that count] in residency.cpp), and every decision
// that the engine bases on the history follows from their sequence alone. Therefore ranks issue the same collectives in
// the same order, whatever the history predicts and whichever parameters of a unit each rank uses.
//
// Threads: guarded by the caller's lock.
class VisitHistory {
 public:
  // Notes that a visit begins.
  void visit(ScheduledUnit* unit);
  // Notes that the pass ends. Does nothing if there was no visit since the last end.
  void end();
  // Turns visits of a unit that no longer exists into visits of its successor. Afterwards known() is false until the
  // next visit.
  void replace(const std::function<ScheduledUnit*(ScheduledUnit*)>& successor);
  // Returns the units visited in the last pass that has ended, in order.
  std::vector<ScheduledUnit*> last_pass() const;

  // Whether the latest visit was found in the history.
  bool known() const { return place_.has_value(); }
  // Whether the latest visit was the expected one. What was expected before is then still expected, except for the unit
  // of this visit.
  bool goes_on() const { return goes_on_; }
  // Whether a unit needs no room of its own, and so is passed over.
  using Ignore = bool (*)(const ScheduledUnit*);
  // Returns the units that come next, without the unit of the latest visit: each once, in order, at most `count`.
  // Passes over at most kLookAhead visits.
  std::vector<ScheduledUnit*> next(size_t count, const Ignore& ignore) const;
  // Returns all units that come before the pass ends, some perhaps more than once, without the ones returned by earlier
  // calls since goes_on() was false or look_again() was called.
  std::vector<ScheduledUnit*> all_next();
  void look_again() { looked_until_ = 0; }
  // Whether the unit comes again before the pass ends.
  bool expects(const ScheduledUnit* unit) const;
  // Whether at most `count` other units are visited before the pass ends.
  bool ends_within(size_t count, const Ignore& ignore) const;

 private:
  struct Coming {
    std::vector<ScheduledUnit*> units;
    bool to_the_end;  // whether `units` reach to the end of the pass
  };
  Coming coming(size_t count, const Ignore& ignore) const;
  void add(ScheduledUnit* unit);
  void find_place();
  size_t matching(size_t place) const;
  void discard_old();

  std::vector<ScheduledUnit*> visits_;  // null: the end of a pass
  std::optional<size_t> place_;         // of the visit that the latest one repeats
  bool goes_on_ = false;
  size_t looked_until_ = 0;  // all_next() has returned the visits before this place
  std::unordered_map<const ScheduledUnit*, std::vector<size_t>> places_;  // of each unit in visits_, ascending
};

}  // namespace fsdp::schedule
