#include "report_page/step_timeline.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/error_message.h"
#include "formats/common/json_text.h"
#include "fsdp/errors.h"

namespace fsdp::trainer {

namespace {

using nlohmann::json;

// The whole trace of a rank; times in ms of the trace.
struct RankTrace {
  std::map<int64_t, TimelineRow> rows;  // by row number
  std::vector<std::string> categories;
  std::vector<MemorySample> memory;
};

struct Window {
  double begin;
  double end;
};

constexpr size_t kMostCategories = 64;  // memory categories; a trace has about ten

double ms(const json& microseconds) { return microseconds.get<double>() / 1e3; }

int64_t number(const json& event, const char* key) {
  const json& value = event.at(key);
  if (!value.is_number_integer()) throw FileError(std::string("an event's \"") + key + "\" is not an integer");
  return value.get<int64_t>();
}

void add_memory(const json& event, RankTrace& rank) {
  MemorySample sample{.at_ms = ms(event.at("ts"))};
  for (const auto& [category, bytes] : event.at("args").items()) {
    auto place = std::find(rank.categories.begin(), rank.categories.end(), category);
    if (place == rank.categories.end()) place = rank.categories.insert(place, category);
    if (rank.categories.size() > kMostCategories) throw FileError("it has more than 64 categories of memory");
    const auto index = static_cast<size_t>(place - rank.categories.begin());
    sample.bytes.resize(std::max(sample.bytes.size(), index + 1));
    sample.bytes[index] = bytes.get<double>();
  }
  rank.memory.push_back(std::move(sample));
}

void add_event(const json& event, std::map<int64_t, RankTrace>& ranks) {
  RankTrace& rank = ranks[number(event, "pid")];
  const std::string phase = event.at("ph").get<std::string>();
  if (phase == "C") return add_memory(event, rank);
  if (phase == "M" && event.at("name") == "thread_name") {
    rank.rows[number(event, "tid")].name = event.at("args").at("name").get<std::string>();
  }
  if (phase != "X") return;
  const double begin = ms(event.at("ts")), length = ms(event.at("dur"));
  if (length < 0) throw FileError("an event's \"dur\" is negative");
  rank.rows[number(event, "tid")].ranges.push_back({begin, begin + length, event.at("cat").get<std::string>(),
                                                    event.at("name").get<std::string>(),
                                                    event.at("args").at("pass").get<std::string>()});
}

// Orders categories from long-lived to short-lived memory; unknown ones are in the middle.
int place_of(const std::string& category) {
  const auto begins = [&](const char* with) { return category.rfind(with, 0) == 0; };
  if (begins("parameter shards")) return 0;
  if (begins("optimizer")) return 1;
  if (begins("gradient shards")) return 2;
  if (begins("unsharded")) return 4;
  if (begins("gradient buffers")) return 5;
  if (begins("buffers kept")) return 6;
  return begins("everything else") ? 7 : 3;
}

void put_in_order(RankTrace& rank) {
  const size_t count = rank.categories.size();
  std::vector<size_t> order(count);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return place_of(rank.categories[a]) < place_of(rank.categories[b]); });
  std::vector<std::string> categories;
  for (const size_t from : order) categories.push_back(rank.categories[from]);
  rank.categories = std::move(categories);
  for (MemorySample& sample : rank.memory) {
    sample.bytes.resize(count);
    std::vector<double> bytes;
    for (const size_t from : order) bytes.push_back(sample.bytes[from]);
    sample.bytes = std::move(bytes);
  }
}

std::map<int64_t, RankTrace> read_trace(const std::filesystem::path& path) {
  const json file = formats::read_json_file(path);
  std::map<int64_t, RankTrace> ranks;
  try {
    for (const json& event : file.at("traceEvents")) add_event(event, ranks);
  } catch (const std::exception& error) {
    throw FileError(path.string() + ": is not a trace of fsdp train: " + base::message_of(error));
  }
  for (auto& [number, rank] : ranks) put_in_order(rank);
  return ranks;
}

std::optional<Window> last_step(const RankTrace& first_rank) {
  std::vector<double> ends;
  double begin = std::numeric_limits<double>::infinity();
  for (const auto& [number, row] : first_rank.rows) {
    for (const TimelineRange& range : row.ranges) {
      begin = std::min(begin, range.begin_ms);
      if (range.kind == "step" && range.name == "optimizer") ends.push_back(range.end_ms);
    }
  }
  if (ends.empty()) return std::nullopt;
  std::sort(ends.begin(), ends.end());
  return Window{ends.size() > 1 ? ends[ends.size() - 2] : begin, ends.back()};
}

// Returns the part of a row that lies in the window, cut at its ends.
TimelineRow within(const TimelineRow& row, const Window& window) {
  TimelineRow part{row.name, {}};
  for (TimelineRange range : row.ranges) {
    if (range.end_ms <= window.begin || range.begin_ms >= window.end) continue;
    range.begin_ms = std::max(range.begin_ms, window.begin) - window.begin;
    range.end_ms = std::min(range.end_ms, window.end) - window.begin;
    part.ranges.push_back(range);
  }
  return part;
}

void take_out_constant(RankTimeline& rank) {
  const auto place = std::find(rank.categories.begin(), rank.categories.end(), "everything else");
  if (place == rank.categories.end() || rank.memory.empty()) return;
  const auto category = static_cast<size_t>(place - rank.categories.begin());
  rank.constant_bytes = std::numeric_limits<double>::infinity();
  for (const MemorySample& sample : rank.memory) {
    rank.constant_bytes = std::min(rank.constant_bytes, sample.bytes[category]);
  }
  for (MemorySample& sample : rank.memory) sample.bytes[category] -= rank.constant_bytes;
  *place = "everything else, above its minimum";
}

RankTimeline within(int64_t number, const RankTrace& rank, const Window& window) {
  RankTimeline part{.rank = number, .categories = rank.categories};
  for (const auto& [tid, row] : rank.rows) {
    if (TimelineRow one = within(row, window); !one.ranges.empty()) part.rows.push_back(std::move(one));
  }
  for (MemorySample sample : rank.memory) {
    if (sample.at_ms > window.end) break;
    // The last sample before the window still applies at its beginning.
    if (sample.at_ms <= window.begin) part.memory.clear();
    sample.at_ms = std::max(0.0, sample.at_ms - window.begin);
    part.memory.push_back(std::move(sample));
  }
  take_out_constant(part);
  return part;
}

}  // namespace

double RankTimeline::busy_ms(const std::string& kind) const {
  std::vector<TimelineRange> ranges;
  for (const TimelineRow& row : rows) {
    std::copy_if(row.ranges.begin(), row.ranges.end(), std::back_inserter(ranges),
                 [&](const TimelineRange& range) { return range.kind == kind; });
  }
  std::sort(ranges.begin(), ranges.end(), [](const auto& a, const auto& b) { return a.begin_ms < b.begin_ms; });
  double sum = 0, covered = 0;
  for (const TimelineRange& range : ranges) {
    sum += std::max(0.0, range.end_ms - std::max(range.begin_ms, covered));
    covered = std::max(covered, range.end_ms);
  }
  return sum;
}

double RankTimeline::peak_bytes(size_t category) const {
  double peak = 0;
  for (const MemorySample& sample : memory) peak = std::max(peak, sample.bytes.at(category));
  return peak;
}

double RankTimeline::peak_bytes() const {
  double peak = 0;
  for (const MemorySample& sample : memory) {
    peak = std::max(peak, std::accumulate(sample.bytes.begin(), sample.bytes.end(), 0.0));
  }
  return peak + constant_bytes;
}

std::optional<StepTimeline> read_step_timeline(const std::filesystem::path& path) {
  const std::map<int64_t, RankTrace> ranks = read_trace(path);
  const auto window = ranks.empty() ? std::nullopt : last_step(ranks.begin()->second);
  if (!window) return std::nullopt;
  StepTimeline step{.length_ms = window->end - window->begin};
  for (const auto& [number, rank] : ranks) step.ranks.push_back(within(number, rank, *window));
  return step;
}

}  // namespace fsdp::trainer
