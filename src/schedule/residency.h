// Tracks which units are gathered and in what order units are used, and decides what follows from both. The engine
// acts.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <list>
#include <mutex>
#include <optional>
#include <vector>

#include "fsdp/pass.h"
#include "schedule/visit_history.h"

namespace fsdp::schedule {

inline constexpr size_t kNoLimit = std::numeric_limits<size_t>::max();

// A pass here is a forward or a backward. The cost of a decision does not depend on the number of units; with kNoLimit
// this holds on average. Threads: safe.
class Residency {
 public:
  // `max_gathered_units`: how many units may be gathered at a time, in addition to units that need no room
  // ([Note: which units stay gathered]).
  explicit Residency(size_t max_gathered_units) : max_gathered_units_(max_gathered_units) {}

  // -- visits: [Note: prediction by history] --
  // The unit of the current visit; null between visits.
  ScheduledUnit* visited() const { return visited_; }
  struct Visit {
    ScheduledUnit* unit = nullptr;
    Pass pass = Pass::kForward;
    int64_t began = 0;  // for the trace
  };
  // Begins a visit; the last one must have been ended. Returns whether the visit counts ([Note: visits that count]). If
  // it does not, nothing may be gathered ahead or released because of it.
  bool begin_visit(const Visit& visit);
  // Ends the current visit and returns it, without a unit if there is none.
  Visit end_visit();
  void end_pass(Pass pass);
  // Returns the units visited in the last pass that has ended, in order.
  std::vector<ScheduledUnit*> last_pass(Pass pass) const;
  // See VisitHistory.
  void replace(const std::function<ScheduledUnit*(ScheduledUnit*)>& successor);

  // -- gathered units; gathers under way are included --
  void add(ScheduledUnit& unit);
  void remove(ScheduledUnit& unit);
  // Must be called after a unit's stays_gathered() has changed.
  void refile(ScheduledUnit& unit);
  std::vector<ScheduledUnit*> gathered() const;
  int64_t count() const;
  int64_t peak_count() const;

  // -- decisions --
  // Returns the units to release before `unit` is used ([Note: which units stay gathered]). `pass`: the pass whose
  // history counts; if unset, only the tree of modules counts.
  std::vector<ScheduledUnit*> to_release_for(ScheduledUnit& unit, std::optional<Pass> pass);
  struct Ahead {
    std::vector<ScheduledUnit*> to_gather;  // in this order
    ScheduledUnit* held_back = nullptr;     // comes next, but there is no room for it yet
  };
  // Returns what to gather ahead after the last visit that counted, or after the beginning of a pass: of the `count`
  // units that come next, the ones that there is room for.
  Ahead to_gather_ahead(Pass pass, size_t count);

 private:
  VisitHistory& history(Pass pass) { return pass == Pass::kForward ? forward_ : backward_; }
  const VisitHistory& history(Pass pass) const { return pass == Pass::kForward ? forward_ : backward_; }
  bool counts(const ScheduledUnit& unit) const;
  bool stays(const ScheduledUnit& unit, std::optional<Pass> pass) const;
  // Returns whether a unit is gathered and needs no room in this pass.
  using IsSettled = bool(const ScheduledUnit*);
  static IsSettled* needing_no_room(Pass pass);
  bool takes_room(const ScheduledUnit& unit, Pass pass) const;
  size_t room(Pass pass) const;
  size_t room_beside(const ScheduledUnit& unit, Pass pass) const;
  // Both return gathered units that `unit` does not need: unexpected() by the history, unrelated() because their
  // modules have ended.
  std::vector<ScheduledUnit*> unexpected(const ScheduledUnit& unit, Pass pass);
  std::vector<ScheduledUnit*> unrelated(const ScheduledUnit& unit, std::optional<Pass> pass) const;
  const ScheduledUnit* last_of_forward(const ScheduledUnit& unit, Pass pass) const;
  void file(ScheduledUnit& unit);
  void take_out(ScheduledUnit& unit);
  void make_candidate(ScheduledUnit& unit);
  void make_all_candidates();

  using Units = std::list<ScheduledUnit*>;
  const size_t max_gathered_units_;
  mutable std::mutex mutex_;
  // Decisions look only at gathered units that do not stay gathered on purpose. There are few of these, while thousands
  // of units may stay gathered on purpose.
  Units resident_;  // least recently visited first
  Units staying_;   // in no order
  // The units in resident_ that the history may not expect any more: units gathered or visited since they were last
  // looked at, and units that were looked at and not expected. All of resident_, if visits did not go on as expected.
  Units candidates_;
  int64_t peak_count_ = 0;
  std::atomic<ScheduledUnit*> visited_{nullptr};
  Visit present_;
  ScheduledUnit* counted_ = nullptr;  // the unit of the last visit that counted, in the current pass
  VisitHistory forward_;
  VisitHistory backward_;
};

}  // namespace fsdp::schedule
