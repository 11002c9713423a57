// One step out of a trace that write_trace() has left (fsdp/trace.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace fsdp::trainer {

struct TimelineRange {
  double begin_ms;  // from the step's begin
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
  std::vector<double> bytes = {};  // by category, in their order
};

struct RankTimeline {
  int64_t rank = 0;
  std::vector<TimelineRow> rows = {};
  std::vector<std::string> categories = {};
  std::vector<MemorySample> memory = {};
  // Of "everything else" what is there during the whole step, which its category therefore leaves out: the program
  // itself, say.
  double constant_bytes = 0;

  // How long ranges of a kind last together, in ms; those at the same time count once.
  double busy_ms(const std::string& kind) const;
  // The most bytes of a category, or of all together with what is constant.
  double peak_bytes(size_t category) const;
  double peak_bytes() const;
};

struct StepTimeline {
  double length_ms = 0;
  std::vector<RankTimeline> ranks = {};  // in order
};

// The last step that the trace holds whole: it ends with an "optimizer" of rank 0, and begins where the one before
// ended or, without one, with the first range. None: the trace holds no such step. Errors: a file that cannot be read,
// or is none that write_trace() has left.
std::optional<StepTimeline> read_step_timeline(const std::filesystem::path& path);

}  // namespace fsdp::trainer
