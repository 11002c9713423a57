#include "planner/report/time_trace.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "formats/common/output_file.h"
#include "trace/trace_file.h"

namespace fsdp::planner {
namespace {

class TimelineMaker {
 public:
  TimelineMaker(const Tape& tape, const TimeForecast& forecast)
      : tape_(tape), priced_(forecast.priced), items_(forecast.result.items) {}

  void add_phases();
  void add_collectives();
  void add_waits();
  void add_units(const Trace& engine);
  void add_memory(const MemoryUse& use);
  Trace take() { return std::move(trace_); }

 private:
  int64_t ns(double seconds) const { return std::llround((seconds - items_[priced_.step_marks.front()].end) * 1e9); }
  void add(TraceTrack track, const std::string& name, Pass pass, double begin, double end, int stage = -1) {
    if (ns(end) > ns(begin)) trace_.ranges.push_back({track, name, pass, ns(begin), ns(end), stage});
  }
  bool computes(size_t item) const {
    return priced_.replay.items[item].kind == ReplayKind::kKernel &&
           priced_.replay.items[item].stream == kComputeStream;
  }
  size_t item_at(int64_t time) const;
  void add_computation(const TraceRange& range);
  void add_held_back(const TraceRange& range);

  const Tape& tape_;
  const PricedTape& priced_;
  const std::vector<ReplayedItem>& items_;
  Trace trace_;
};

const char* name_of_phase(StepPhase phase) {
  if (phase == StepPhase::kBackward) return "backward";
  return phase == StepPhase::kUpdate ? "optimizer" : "forward";
}

// The names are those of TrainingRun's ranges. The last phase of a step ends with it.
void TimelineMaker::add_phases() {
  const std::vector<PhaseMark>& marks = priced_.phase_marks;
  for (size_t i = 0; i < marks.size(); ++i) {
    const bool ends_step = i + 1 == marks.size() || marks[i + 1].step != marks[i].step;
    const size_t end = ends_step ? priced_.step_marks[static_cast<size_t>(marks[i].step) + 1] : marks[i + 1].item;
    add(TraceTrack::kStep, name_of_phase(marks[i].phase), Pass::kUser, items_[marks[i].item].end, items_[end].end);
  }
}

void TimelineMaker::add_collectives() {
  for (size_t i = 0; i < items_.size(); ++i) {
    if (priced_.replay.items[i].kind != ReplayKind::kCollective) continue;
    const TapeCollective& collective = tape_.collectives()[static_cast<size_t>(priced_.replay.items[i].flow)];
    const bool of_unit =
        collective.kind != comm::CollectiveKind::kGatherBytes && collective.kind != comm::CollectiveKind::kMessage;
    if (!of_unit) continue;
    const bool gathers = collective.kind == comm::CollectiveKind::kAllGather;
    add(gathers ? TraceTrack::kGather : TraceTrack::kReduce, collective.id.name, collective.id.pass, items_[i].begin,
        items_[i].end);
  }
}

// The stream that computes waits for events of other streams. Each stands for the collective before it on its stream.
void TimelineMaker::add_waits() {
  std::unordered_map<int, int> last_of_stream;  // collectives
  std::unordered_map<int64_t, int> collective_of_event;
  for (size_t i = 0; i < items_.size(); ++i) {
    const ReplayItem& item = priced_.replay.items[i];
    if (item.kind == ReplayKind::kCollective) last_of_stream[item.stream] = item.flow;
    if (item.kind == ReplayKind::kRecord) {
      if (const auto last = last_of_stream.find(item.stream); last != last_of_stream.end()) {
        collective_of_event[item.event] = last->second;
      }
    }
    if (item.kind != ReplayKind::kStreamWait || item.stream != kComputeStream) continue;
    const auto found = collective_of_event.find(item.event);
    if (found == collective_of_event.end()) continue;
    const CollectiveId& id = tape_.collectives()[static_cast<size_t>(found->second)].id;
    add(TraceTrack::kWait, id.name, id.pass, items_[i].begin, items_[i].end);
  }
}

// Returns the first item of the entries that were made at this time or later.
size_t TimelineMaker::item_at(int64_t time) const {
  const std::vector<int64_t>& times = tape_.times();
  const auto noted = std::lower_bound(times.begin(), times.end(), time) - times.begin();
  const size_t unnoted = tape_.entries().size() - times.size();
  return std::min(priced_.first_item_of(unnoted + static_cast<size_t>(noted)), items_.size() - 1);
}

void TimelineMaker::add_computation(const TraceRange& range) {
  const size_t end = item_at(range.end_ns);
  size_t first = item_at(range.begin_ns);
  while (first < end && !computes(first)) ++first;
  size_t last = end;
  while (last > first && !computes(last - 1)) --last;
  if (first < last) add(range.track, range.name, range.pass, items_[first].begin, items_[last - 1].end, range.stage);
}

// The computation of a unit, or a pass of a stage.
bool is_computation(TraceTrack track) {
  return track == TraceTrack::kCompute || track == TraceTrack::kStageForward || track == TraceTrack::kStageBackward ||
         track == TraceTrack::kStageInputGradient || track == TraceTrack::kStageWeightGradient;
}

// Gathers are held back by the host.
void TimelineMaker::add_held_back(const TraceRange& range) {
  add(TraceTrack::kLimiter, range.name, range.pass, items_[item_at(range.begin_ns)].issued,
      items_[item_at(range.end_ns)].issued);
}

void TimelineMaker::add_units(const Trace& engine) {
  for (const TraceRange& range : engine.ranges) {
    if (is_computation(range.track)) add_computation(range);
    if (range.track == TraceTrack::kLimiter) add_held_back(range);
  }
}

// Bytes by kind, changed by allocations and frees in the order of the tape. Keeps the largest sample of each interval.
class MemorySamples {
 public:
  explicit MemorySamples(int64_t interval_ns) : interval_ns_(std::max<int64_t>(interval_ns, 1)) {}

  void change(const Lifetime& lifetime, bool born) {
    const int64_t bytes = born ? lifetime.bytes : -lifetime.bytes;
    bytes_[static_cast<size_t>(lifetime.kind)] += bytes;
    total_ += bytes;
  }
  void sample(int64_t at_ns) {
    if (samples_.empty() || at_ns / interval_ns_ != samples_.back().at_ns / interval_ns_) {
      samples_.push_back(made(at_ns));
      largest_ = total_;
    } else if (total_ > largest_) {
      samples_.back() = made(at_ns);
      largest_ = total_;
    }
  }
  std::vector<TraceMemory> take() { return std::move(samples_); }

 private:
  TraceMemory made(int64_t at_ns) const {
    TraceMemory memory{.at_ns = at_ns, .bytes = {}};
    for (size_t kind = 0; kind < kMemoryKinds; ++kind) {
      memory.bytes.emplace_back(to_string(static_cast<MemoryKind>(kind)), bytes_[kind]);
    }
    return memory;
  }

  int64_t interval_ns_;
  std::array<int64_t, kMemoryKinds> bytes_{};
  int64_t total_ = 0;
  int64_t largest_ = 0;
  std::vector<TraceMemory> samples_;
};

struct MemoryChange {
  size_t entry;
  size_t lifetime;
  bool born;
};

std::vector<MemoryChange> changes_of(const MemoryUse& use) {
  std::vector<MemoryChange> changes;
  for (size_t i = 0; i < use.lifetimes.size(); ++i) {
    changes.push_back({use.lifetimes[i].born, i, true});
    if (use.lifetimes[i].freed != SIZE_MAX) changes.push_back({use.lifetimes[i].freed, i, false});
  }
  std::sort(changes.begin(), changes.end(), [](const auto& a, const auto& b) { return a.entry < b.entry; });
  return changes;
}

// Memory changes when the stream that computes comes to the next item.
void TimelineMaker::add_memory(const MemoryUse& use) {
  constexpr int64_t kSamples = 3000;
  MemorySamples samples(ns(items_[priced_.step_marks.back()].end) / kSamples);
  size_t item = 0;
  double now = items_[priced_.step_marks.front()].end;
  for (const MemoryChange& change : changes_of(use)) {
    for (; item < items_.size() && priced_.entries[item] < change.entry; ++item) {
      if (priced_.replay.items[item].stream == kComputeStream) now = std::max(now, items_[item].end);
    }
    samples.change(use.lifetimes[change.lifetime], change.born);
    if (change.entry >= priced_.entries.front()) samples.sample(ns(now));
  }
  trace_.memory = samples.take();
}

}  // namespace

Trace time_trace(const Tape& tape, const TimeForecast& forecast, const MemoryUse& memory, const Trace& engine) {
  TimelineMaker timeline(tape, forecast);
  timeline.add_phases();
  timeline.add_collectives();
  timeline.add_waits();
  timeline.add_units(engine);
  timeline.add_memory(memory);
  return timeline.take();
}

void write_time_trace(const std::filesystem::path& path, int rank, const Trace& trace) {
  formats::write_file(path, trace::trace_file_text({trace::trace_events(rank, trace)}));
}

}  // namespace fsdp::planner
