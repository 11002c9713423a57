#include "planner/memory/memory_use.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <unordered_map>

#include "planner/memory/memory_course.h"
#include "planner/memory/step_phases.h"

namespace fsdp::planner {
namespace {

using base::AllocationPurpose;

std::vector<Lifetime> lifetimes_of(const Tape& tape, const std::vector<Place>& places) {
  std::vector<Lifetime> lifetimes;
  std::unordered_map<int64_t, size_t> alive;
  const std::vector<TapeEntry>& entries = tape.entries();
  for (size_t i = 0; i < entries.size(); ++i) {
    const TapeEntry& entry = entries[i];
    if (entry.kind == TapeKind::kAllocation && std::count(places.begin(), places.end(), entry.place) > 0) {
      alive.emplace(entry.id, lifetimes.size());
      lifetimes.push_back({.id = entry.id, .bytes = entry.bytes, .maker = entry.name, .born = i});
    } else if (entry.kind == TapeKind::kFree) {
      if (const auto found = alive.find(entry.id); found != alive.end()) lifetimes[found->second].freed = i;
    }
  }
  return lifetimes;
}

MemoryKind kind_of(const Lifetime& lifetime, AllocationPurpose purpose, const StepPhases& phases) {
  switch (purpose) {
    case AllocationPurpose::kShards:
      return MemoryKind::kShards;
    case AllocationPurpose::kGradientShards:
      return MemoryKind::kGradientShards;
    case AllocationPurpose::kUnshardedParameters:
      return MemoryKind::kUnshardedParameters;
    case AllocationPurpose::kGradientBuffers:
      return MemoryKind::kGradientBuffers;
    case AllocationPurpose::kOptimizerState:
      return MemoryKind::kOptimizerState;
    case AllocationPurpose::kCommunication:
      return MemoryKind::kCommunication;
    case AllocationPurpose::kOther:
      break;
  }
  if (lifetime.freed > phases.end_of_step(lifetime.born)) return MemoryKind::kKept;
  const bool in_forward = phases.phase_of(lifetime.born) == StepPhase::kForward;
  return in_forward && lifetime.freed > phases.next_backward(lifetime.born) ? MemoryKind::kActivations
                                                                            : MemoryKind::kTemporaries;
}

// Walks along the tape and keeps the moments at which most is in use.
class Peaks {
 public:
  Peaks(const StepPhases& phases, size_t steps) : phases_(phases) { use_.peak_of_step.resize(steps); }

  void born(const Lifetime& lifetime) {
    change(lifetime, lifetime.bytes);
    note(use_.peak, lifetime.born);
    const int step = phases_.step_of(lifetime.born);
    if (step >= 0) note(use_.peak_of_step[static_cast<size_t>(step)], lifetime.born);
  }
  void freed(const Lifetime& lifetime) { change(lifetime, -lifetime.bytes); }
  MemoryUse take() { return std::move(use_); }

 private:
  void change(const Lifetime& lifetime, int64_t bytes) {
    now_.bytes += bytes;
    now_.by_kind[static_cast<size_t>(lifetime.kind)] += bytes;
  }
  void note(MemoryMoment& peak, size_t entry) const {
    if (now_.bytes <= peak.bytes) return;
    peak = now_;
    peak.entry = entry;
    peak.step = phases_.step_of(entry);
    peak.phase = phases_.phase_of(entry);
  }

  const StepPhases& phases_;
  MemoryMoment now_;
  MemoryUse use_;
};

std::vector<size_t> largest_at(const std::vector<Lifetime>& lifetimes, size_t entry) {
  constexpr size_t kMost = 10;
  std::vector<size_t> found;
  for (size_t i = 0; i < lifetimes.size(); ++i) {
    if (lifetimes[i].born <= entry && entry < lifetimes[i].freed) found.push_back(i);
  }
  const auto count = static_cast<std::ptrdiff_t>(std::min(kMost, found.size()));
  std::partial_sort(found.begin(), found.begin() + count, found.end(), [&](size_t a, size_t b) {
    return lifetimes[a].bytes != lifetimes[b].bytes ? lifetimes[a].bytes > lifetimes[b].bytes : a < b;
  });
  found.resize(static_cast<size_t>(count));
  return found;
}

}  // namespace

const char* to_string(MemoryKind kind) {
  constexpr std::array kNames = {"parameter shards", "gradient shards", "unsharded parameters", "gradient buffers",
                                 "optimizer state",  "communication",   "activations",          "kept",
                                 "temporaries"};
  static_assert(kNames.size() == kMemoryKinds);
  return kNames.at(static_cast<size_t>(kind));
}

MemoryUse memory_use(const Tape& tape, const std::vector<size_t>& step_bounds, const std::vector<Place>& places) {
  TORCH_INTERNAL_ASSERT(!step_bounds.empty());
  const StepPhases phases(tape, step_bounds);
  std::vector<Lifetime> lifetimes = lifetimes_of(tape, places);
  std::vector<std::pair<size_t, size_t>> ends;  // entry, index
  for (size_t i = 0; i < lifetimes.size(); ++i) {
    lifetimes[i].kind = kind_of(lifetimes[i], tape.entries()[lifetimes[i].born].purpose, phases);
    if (lifetimes[i].freed != SIZE_MAX) ends.emplace_back(lifetimes[i].freed, i);
  }
  std::sort(ends.begin(), ends.end());
  Peaks peaks(phases, step_bounds.size() - 1);
  auto end = ends.begin();
  for (const Lifetime& lifetime : lifetimes) {
    for (; end != ends.end() && end->first < lifetime.born; ++end) peaks.freed(lifetimes[end->second]);
    peaks.born(lifetime);
  }
  MemoryUse use = peaks.take();
  use.largest_at_peak = largest_at(lifetimes, use.peak.entry);
  use.course = course_of_last_step(lifetimes, phases);
  use.lifetimes = std::move(lifetimes);
  return use;
}

}  // namespace fsdp::planner
