// The execution order as it was seen, and what it says of what comes next.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

namespace fsdp {

class Unit;

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
// Every decision that the engine takes by it follows from the sequence of visits alone, which is the same on all ranks:
// so ranks issue the same collectives in the same order whatever it predicts.
//
// Threads: the caller's lock.
class VisitHistory {
 public:
  // How a visit ended: its last operator used this parameter for the `count`-th time in the visit.
  struct LastUse {
    int64_t parameter = -1;
    int64_t count = 0;
    bool operator==(const LastUse&) const = default;
  };

  // A visit begins.
  void visit(Unit* unit);
  // What the last use of the latest visit is so far.
  void set_last_use(const LastUse& use);
  // The pass ends; nothing when nothing came since the last end.
  void end();
  // Visits of a unit that is no more become visits of its successor; `successor` tells it, and what index a parameter
  // of the former has there. What followed the latest visit is not known any more.
  void replace(const std::function<std::pair<Unit*, int64_t>(Unit*, int64_t parameter)>& successor);
  // The units visited in the last pass that has ended, in order.
  std::vector<Unit*> last_pass() const;

  // Whether the latest visit was found in the history.
  bool known() const { return place_.has_value(); }
  // How the visit that the latest one is thought to repeat ended.
  std::optional<LastUse> expected_last_use() const;
  // Units that need no room of their own, and so are passed over.
  using Ignore = bool (*)(const Unit*);
  // The units, other than that of the latest visit, that come next: each once, in order, at most `count`.
  std::vector<Unit*> next(size_t count, const Ignore& ignore) const;
  // Whether the latest visit's unit is visited again in this pass before more than `count` others.
  bool returns_within(size_t count, const Ignore& ignore) const;
  // Whether the pass ends before more than `count` others are visited.
  bool ends_within(size_t count, const Ignore& ignore) const;

 private:
  struct Visit {
    Unit* unit;  // null: the end of a pass
    LastUse last_use;
  };
  void find_place();
  size_t matching(size_t place) const;
  void trim();

  std::vector<Visit> visits_;
  std::optional<size_t> place_;  // of the visit that the latest one repeats
};

}  // namespace fsdp
