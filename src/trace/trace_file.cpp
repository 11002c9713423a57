#include "trace/trace_file.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "formats/common/output_file.h"

namespace fsdp::trace {
namespace {

using Json = nlohmann::ordered_json;

// In the order of the rows. Waits lie within the ranges of computation and share their row. Each stage of a pipeline
// has a row of its own, without lanes.
enum class Row : int { kStep, kStage, kCompute, kGather, kLimiter, kReduce };
constexpr std::array kRowNames = {"step", "stage", "compute", "all-gather", "held back by limit_all_gathers", "reduce"};
constexpr int kMaxLanes = 1'000'000;  // row numbers are row * kMaxLanes + lane (or stage) + 1

Row row_of(TraceTrack track) {
  switch (track) {
    case TraceTrack::kStep:
      return Row::kStep;
    case TraceTrack::kCompute:
    case TraceTrack::kWait:
      return Row::kCompute;
    case TraceTrack::kGather:
      return Row::kGather;
    case TraceTrack::kReduce:
      return Row::kReduce;
    case TraceTrack::kLimiter:
      return Row::kLimiter;
    case TraceTrack::kStageForward:
    case TraceTrack::kStageBackward:
    case TraceTrack::kStageInputGradient:
    case TraceTrack::kStageWeightGradient:
    case TraceTrack::kStageWait:
      return Row::kStage;
  }
  TORCH_CHECK(false, "fsdp: unknown track ", static_cast<int>(track));
}

// Ranges that began earlier come first. Of ranges that began together, the longest comes first, because it contains the
// others.
bool comes_first(const TraceRange& a, const TraceRange& b) {
  return a.begin_ns != b.begin_ns ? a.begin_ns < b.begin_ns : a.end_ns > b.end_ns;
}

// One row of ranges that do not overlap, except that waits may lie within other ranges.
struct Lane {
  std::vector<int64_t> open;  // ends of the ranges that contain the latest one, outermost first

  bool takes(const TraceRange& range) {
    while (!open.empty() && open.back() <= range.begin_ns) open.pop_back();
    if (!open.empty() && (range.end_ns > open.back() || range.track != TraceTrack::kWait)) return false;
    open.push_back(range.end_ns);
    return true;
  }
};

// The lanes of one kind of row. A range is placed in the first lane that takes it. Thousands of gathers may be in
// flight at once, so the empty lanes are known; only waits, which lie within other ranges, look at the lanes before
// those.
class Lanes {
 public:
  size_t size() const { return lanes_.size(); }

  // Returns the index of the range's lane. Ranges must come in the order of comes_first().
  size_t place(const TraceRange& range) {
    for (; !busy_.empty() && busy_.begin()->first <= range.begin_ns; busy_.erase(busy_.begin())) {
      empty_.insert(busy_.begin()->second);
    }
    size_t lane = range.track == TraceTrack::kWait ? 0 : empty_.empty() ? lanes_.size() : *empty_.begin();
    while (lane < lanes_.size() && !lanes_[lane].takes(range)) ++lane;
    if (lane == lanes_.size()) lanes_.emplace_back().takes(range);
    if (lanes_[lane].open.size() == 1) {
      empty_.erase(lane);
      busy_.emplace(range.end_ns, lane);
    }
    return lane;
  }

 private:
  std::vector<Lane> lanes_;
  std::set<size_t> empty_;
  std::set<std::pair<int64_t, size_t>> busy_;  // when the outermost range of a lane ends, and the lane
};

class RankEvents {
 public:
  explicit RankEvents(int rank) : rank_(rank) {
    name("process_name", 0, "rank " + std::to_string(rank));
    events_.push_back({{"ph", "M"}, {"name", "process_sort_index"}, {"pid", rank}, {"args", {{"sort_index", rank}}}});
  }

  void add(const TraceRange& range) {
    const int tid = place(range);
    events_.push_back({{"ph", "X"},
                       {"name", title(range)},
                       {"cat", to_string(range.track)},
                       {"pid", rank_},
                       {"tid", tid},
                       {"ts", static_cast<double>(range.begin_ns) / 1e3},
                       {"dur", static_cast<double>(range.end_ns - range.begin_ns) / 1e3},
                       {"args", {{"unit", range.name}, {"pass", to_string(range.pass)}}}});
  }

  void add(const TraceMemory& memory) {
    Json bytes = Json::object();
    // Several stages of a pipeline have the same categories.
    for (const auto& [category, value] : memory.bytes) bytes[category] = bytes.value(category, int64_t{0}) + value;
    events_.push_back({{"ph", "C"},
                       {"name", "memory"},
                       {"pid", rank_},
                       {"ts", static_cast<double>(memory.at_ns) / 1e3},
                       {"args", std::move(bytes)}});
  }

  std::string text() const {
    std::string text;
    for (const Json& event : events_) text += (text.empty() ? "" : ",\n") + event.dump();
    return text;
  }

 private:
  static std::string title(const TraceRange& range) {
    switch (range.track) {
      case TraceTrack::kWait:
        return std::string(range.pass == Pass::kReduce ? "wait for reduction: " : "wait for gather: ") + range.name;
      case TraceTrack::kLimiter:
        return "held back: " + range.name;
      case TraceTrack::kStageWait:
        return "wait for " + range.name;
      default:
        return range.name;
    }
  }

  // Returns the number of the range's row, which is named when its first range comes.
  int place(const TraceRange& range) {
    const auto row = static_cast<size_t>(row_of(range.track));
    const bool is_stage = row_of(range.track) == Row::kStage;
    const int lane = is_stage ? range.stage : static_cast<int>(lanes_[row].place(range));
    const int tid = static_cast<int>(row) * kMaxLanes + lane + 1;
    if (named_.insert(tid).second) {
      name("thread_name", tid, kRowNames[row] + (is_stage ? " " + std::to_string(lane) : std::string()));
      events_.push_back(
          {{"ph", "M"}, {"name", "thread_sort_index"}, {"pid", rank_}, {"tid", tid}, {"args", {{"sort_index", tid}}}});
    }
    return tid;
  }

  void name(const char* what, int tid, const std::string& value) {
    events_.push_back({{"ph", "M"}, {"name", what}, {"pid", rank_}, {"tid", tid}, {"args", {{"name", value}}}});
  }

  int rank_;
  std::array<Lanes, kRowNames.size()> lanes_;
  std::set<int> named_;  // rows
  std::vector<Json> events_;
};

// Returns the earliest begin, from which times are counted, so that fractions of microseconds are not lost in a double.
int64_t earliest(const std::vector<std::string>& begins) {
  int64_t first = std::numeric_limits<int64_t>::max();
  for (const std::string& begin : begins) first = std::min<int64_t>(first, std::stoll(begin));
  return first;
}

int64_t first_begin(const Trace& trace) {
  int64_t first = std::numeric_limits<int64_t>::max();
  for (const TraceRange& range : trace.ranges) first = std::min(first, range.begin_ns);
  for (const TraceMemory& memory : trace.memory) first = std::min(first, memory.at_ns);
  return first;
}

// Writes the file. Returns the error message, or an empty string on success.
std::string write(const std::filesystem::path& path, const std::vector<std::string>& events) {
  try {
    if (path.has_parent_path()) std::filesystem::create_directories(path.parent_path());
    formats::write_file(path, trace_file_text(events));
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    return error.what();
  }
  return {};
}

}  // namespace

std::string trace_events(int rank, Trace trace) {
  std::sort(trace.ranges.begin(), trace.ranges.end(), comes_first);
  RankEvents events(rank);
  for (const TraceRange& range : trace.ranges) events.add(range);
  for (const TraceMemory& memory : trace.memory) events.add(memory);
  return events.text();
}

std::string trace_file_text(const std::vector<std::string>& events) {
  std::string text = "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n";
  for (size_t rank = 0; rank < events.size(); ++rank) text += (rank > 0 ? ",\n" : "") + events[rank];
  return text + "\n]}\n";
}

}  // namespace fsdp::trace

namespace fsdp {

void write_trace(const std::filesystem::path& path, Communicator& communicator, const Trace& trace) {
  const int64_t origin = trace::earliest(
      communicator.all_gather_bytes(std::to_string(trace::first_begin(trace)), {"trace origin", 0, Pass::kUser}));
  Trace shifted = trace;
  for (TraceRange& range : shifted.ranges) {
    range.begin_ns -= origin;
    range.end_ns -= origin;
  }
  for (TraceMemory& memory : shifted.memory) memory.at_ns -= origin;
  const std::vector<std::string> events = communicator.all_gather_bytes(
      trace::trace_events(communicator.rank(), std::move(shifted)), {"trace", 0, Pass::kUser});
  const std::string problem = communicator.all_gather_bytes(communicator.rank() == 0 ? trace::write(path, events) : "",
                                                            {"trace written", 0, Pass::kUser})[0];
  if (!problem.empty()) throw TraceNotWritten({__func__, __FILE__, __LINE__}, "the trace was not written: " + problem);
}

}  // namespace fsdp
