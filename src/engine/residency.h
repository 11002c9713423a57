// Which units are gathered, in what order units are used, and what follows from both. Decides only; the engine acts.
#pragma once

#include <atomic>
#include <limits>
#include <mutex>
#include <optional>
#include <vector>

#include "engine/visit_history.h"
#include "fsdp/communicator.h"
#include "fsdp/options.h"

namespace fsdp {

inline constexpr size_t kNoLimit = std::numeric_limits<size_t>::max();

// See Options.
struct OverlapOptions {
  BackwardPrefetch backward_prefetch = BackwardPrefetch::kPre;
  bool forward_prefetch = true;
  size_t max_gathered_units = 2;  // or kNoLimit
  bool one_communicator = false;
  bool high_priority_streams = true;
};

// Passes here are forward and backward. Threads: safe.
class Residency {
 public:
  explicit Residency(size_t max_gathered_units) : max_gathered_units_(max_gathered_units) {}

  // -- visits: [Note: prediction by history] --
  struct Visit {
    Unit* unit = nullptr;
    Pass pass = Pass::kForward;
    int64_t began = 0;  // for the trace
  };
  // The unit of the present visit; null between visits.
  Unit* visited() const { return visited_; }
  // The last visit must have been ended. Whether the visit counts ([Note: visits that count]): else nothing is to be
  // gathered ahead or released because of it.
  bool begin_visit(const Visit& visit);
  // Ends the present visit and returns it; without a unit where there is none.
  Visit end_visit();
  void end_pass(Pass pass);
  // The units visited in the last pass that has ended, in order.
  std::vector<Unit*> last_pass(Pass pass) const;
  // See VisitHistory.
  void replace(const std::function<Unit*(Unit*)>& successor);

  // -- gathered units; gathers under way are included --
  void add(Unit& unit);
  void remove(Unit& unit);
  std::vector<Unit*> gathered() const;
  int64_t count() const;
  int64_t peak_count() const;

  // -- decisions --
  // What is to be released before `unit` is used ([Note: which units stay gathered]). `pass`: whose history counts;
  // unset: none, the structure alone.
  std::vector<Unit*> to_release_for(Unit& unit, std::optional<Pass> pass);
  // Units that come after the last visit that counted, or after the beginning of a pass, and need room: at most
  // `count`.
  std::vector<Unit*> expected(Pass pass, size_t count) const;
  // Whether another unit may be gathered.
  bool has_room() const;

 private:
  VisitHistory& history(Pass pass) { return pass == Pass::kForward ? forward_ : backward_; }
  const VisitHistory& history(Pass pass) const { return pass == Pass::kForward ? forward_ : backward_; }
  bool counts(const Unit& unit) const;
  bool stays(const Unit& unit) const;
  size_t room_beside(const Unit& unit) const;
  std::vector<Unit*> kept_with(const Visit& visit) const;
  // Gathered units that `unit` does not need: those that are not expected; those whose module has ended.
  std::vector<Unit*> unexpected(const Unit& unit, const std::vector<Unit*>& expected) const;
  std::vector<Unit*> unrelated(const Unit& unit) const;

  const size_t max_gathered_units_;
  mutable std::mutex mutex_;
  // Decisions ask only for units that do not stay gathered on purpose, of which there are few; of the others there may
  // be thousands.
  std::vector<Unit*> resident_;  // least recently visited first
  std::vector<Unit*> staying_;   // in no order; Unit::place_among_staying
  int64_t peak_count_ = 0;
  std::atomic<Unit*> visited_{nullptr};
  Visit present_;
  Unit* counted_ = nullptr;  // the unit of the last visit that counted, in the present pass
  VisitHistory forward_;
  VisitHistory backward_;
};

}  // namespace fsdp
