#include "planner/memory/memory_course.h"

#include <algorithm>
#include <cstdint>
#include <utility>

namespace fsdp::planner {
namespace {

// More or less memory of a kind, from an entry on.
struct MemoryChange {
  size_t entry;
  size_t kind;
  int64_t bytes;
};

// Returns the changes within the step in order, and adds those before it to `start`.
std::vector<MemoryChange> changes_of_step(const std::vector<Lifetime>& lifetimes, size_t begin, size_t end,
                                          MemoryMoment& start) {
  std::vector<MemoryChange> changes;
  const auto note = [&](size_t entry, size_t kind, int64_t bytes) {
    if (entry >= end) return;
    if (entry >= begin) return changes.push_back({entry, kind, bytes});
    start.bytes += bytes;
    start.by_kind[kind] += bytes;
  };
  for (const Lifetime& lifetime : lifetimes) {
    const auto kind = static_cast<size_t>(lifetime.kind);
    note(lifetime.born, kind, lifetime.bytes);
    note(lifetime.freed, kind, -lifetime.bytes);
  }
  std::stable_sort(changes.begin(), changes.end(),
                   [](const MemoryChange& a, const MemoryChange& b) { return a.entry < b.entry; });
  return changes;
}

// Keeps two moments of each part.
class ThinnedCourse {
 public:
  ThinnedCourse(size_t begin, size_t end, size_t parts) : parts_(parts) {
    course_.begin = begin;
    course_.end = end;
  }

  void add(const MemoryMoment& moment) {
    const size_t part = (moment.entry - course_.begin) * parts_ / (course_.end - course_.begin);
    if (part != part_) keep();
    if (part_ != part || moment.bytes > most_.bytes) most_ = moment;
    if (part_ != part || moment.bytes < least_.bytes) least_ = moment;
    part_ = part;
  }
  MemoryCourse take() {
    keep();
    return std::move(course_);
  }

 private:
  void keep() {
    if (part_ == SIZE_MAX) return;
    const bool rises = least_.entry < most_.entry;
    course_.moments.push_back(rises ? least_ : most_);
    if (least_.entry != most_.entry) course_.moments.push_back(rises ? most_ : least_);
  }

  size_t parts_;
  size_t part_ = SIZE_MAX;  // of the latest moment
  MemoryMoment most_;
  MemoryMoment least_;
  MemoryCourse course_;
};

}  // namespace

MemoryCourse course_of_last_step(const std::vector<Lifetime>& lifetimes, const StepPhases& phases, size_t parts) {
  const std::vector<size_t>& bounds = phases.bounds();
  if (bounds.size() < 2 || bounds[bounds.size() - 2] == bounds.back()) return {};
  const size_t begin = bounds[bounds.size() - 2], end = bounds.back();
  MemoryMoment now{.entry = begin, .step = phases.step_of(begin), .phase = phases.phase_of(begin)};
  const std::vector<MemoryChange> changes = changes_of_step(lifetimes, begin, end, now);
  ThinnedCourse course(begin, end, parts);
  course.add(now);
  for (const MemoryChange& change : changes) {
    now.entry = change.entry;
    now.phase = phases.phase_of(change.entry);
    now.bytes += change.bytes;
    now.by_kind[change.kind] += change.bytes;
    course.add(now);
  }
  return course.take();
}

}  // namespace fsdp::planner
