// One step of a trace that write_trace() has written (fsdp/trace.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace fsdp::trainer {

struct TimelineRange {
  double begin_ms;  // from the beginning of the step
  double end_ms;
  std::string kind;  // to_string(TraceTrack)
  std::string name;
  std::string pass;
};

struct TimelineRow {
  std::string name;  // "compute", "all-gather", …
  std::vector<TimelineRange> ranges;
};

struct MemorySample {
  double at_ms = 0;
  std::vector<double> bytes = {};  // one for each category, in the order of `categories`
};

struct RankTimeline {
  int64_t rank = 0;
  std::vector<TimelineRow> rows = {};
  std::vector<std::string> categories = {};
  std::vector<MemorySample> memory = {};
  // The bytes of "everything else" that are present during the whole step, such as the program itself. They are not
  // included in that category's samples.
  double constant_bytes = 0;

  // Returns the total duration of the ranges of a kind, in ms; overlapping ranges count once.
  double busy_ms(const std::string& kind) const;
  // Return the peak bytes of a category, or of all categories together including the constant bytes.
  double peak_bytes(size_t category) const;
  double peak_bytes() const;
};

struct StepTimeline {
  double length_ms = 0;
  std::vector<RankTimeline> ranks = {};  // in order of ranks
};

// Returns the last step that the trace contains completely, or nothing if it contains none. The step ends with an
// "optimizer" range of rank 0, and begins where the one before ended or, if there is no such range, with the first
// range. Throws an error if the file cannot be read or is not a trace from write_trace().
std::optional<StepTimeline> read_step_timeline(const std::filesystem::path& path);

}  // namespace fsdp::trainer
