// Which units are gathered, in what order units are used, and what follows from both. Decides only; the engine acts.
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

// Passes here are forward and backward. A decision costs the same however many units there are, and with kNoLimit the
// same on average. Threads: safe.
class Residency {
 public:
  // How many units may be gathered at a time, beside those that need no room ([Note: which units stay gathered]).
  explicit Residency(size_t max_gathered_units) : max_gathered_units_(max_gathered_units) {}

  // -- visits: [Note: prediction by history] --
  // The unit of the present visit; null between visits.
  ScheduledUnit* visited() const { return visited_; }
  struct Visit {
    ScheduledUnit* unit = nullptr;
    Pass pass = Pass::kForward;
    int64_t began = 0;  // for the trace
  };
  // The last visit must have been ended. Whether the visit counts ([Note: visits that count]): else nothing is to be
  // gathered ahead or released because of it.
  bool begin_visit(const Visit& visit);
  // Ends the present visit and returns it; without a unit where there is none.
  Visit end_visit();
  void end_pass(Pass pass);
  // The units visited in the last pass that has ended, in order.
  std::vector<ScheduledUnit*> last_pass(Pass pass) const;
  // See VisitHistory.
  void replace(const std::function<ScheduledUnit*(ScheduledUnit*)>& successor);

  // -- gathered units; gathers under way are included --
  void add(ScheduledUnit& unit);
  void remove(ScheduledUnit& unit);
  std::vector<ScheduledUnit*> gathered() const;
  int64_t count() const;
  int64_t peak_count() const;

  // -- decisions --
  // What is to be released before `unit` is used ([Note: which units stay gathered]). `pass`: whose history counts;
  // unset: none, the structure alone.
  std::vector<ScheduledUnit*> to_release_for(ScheduledUnit& unit, std::optional<Pass> pass);
  struct Ahead {
    std::vector<ScheduledUnit*> to_gather;  // in this order
    ScheduledUnit* held_back = nullptr;     // comes next, but there is no room for it yet
  };
  // What is to be gathered ahead after the last visit that counted, or after the beginning of a pass: of the `count`
  // units that come next, those that there is room for.
  Ahead to_gather_ahead(Pass pass, size_t count);

 private:
  VisitHistory& history(Pass pass) { return pass == Pass::kForward ? forward_ : backward_; }
  const VisitHistory& history(Pass pass) const { return pass == Pass::kForward ? forward_ : backward_; }
  bool counts(const ScheduledUnit& unit) const;
  bool stays(const ScheduledUnit& unit) const;
  static bool needs_no_room(const ScheduledUnit* unit);
  bool takes_room(const ScheduledUnit& unit) const;
  size_t room() const;
  size_t room_beside(const ScheduledUnit& unit) const;
  // Gathered units that `unit` does not need: those that are not expected; those whose module has ended.
  std::vector<ScheduledUnit*> unexpected(const ScheduledUnit& unit, Pass pass);
  std::vector<ScheduledUnit*> unrelated(const ScheduledUnit& unit) const;
  const ScheduledUnit* last_of_forward(const ScheduledUnit& unit, Pass pass) const;
  void make_candidate(ScheduledUnit& unit);
  void make_all_candidates();

  using Units = std::list<ScheduledUnit*>;
  const size_t max_gathered_units_;
  mutable std::mutex mutex_;
  // Decisions ask only for units that do not stay gathered on purpose, of which there are few; of the others there may
  // be thousands.
  Units resident_;  // least recently visited first
  Units staying_;   // in no order
  // Those of resident_ that the history may not expect any more: gathered or visited since they were last looked at, or
  // looked at and not expected. All, where visits did not go on as they were expected to.
  Units candidates_;
  int64_t peak_count_ = 0;
  std::atomic<ScheduledUnit*> visited_{nullptr};
  Visit present_;
  ScheduledUnit* counted_ = nullptr;  // the unit of the last visit that counted, in the present pass
  VisitHistory forward_;
  VisitHistory backward_;
};

}  // namespace fsdp::schedule
