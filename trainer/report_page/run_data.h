// The data of a run for a report, read from its output_dir.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "report/metrics_reader.h"
#include "report_page/step_timeline.h"

namespace fsdp::trainer {

struct RunData {
  std::string name = {};                            // unique among the runs
  std::vector<MetricsLine> lines = {};              // the valid lines (read_metrics)
  nlohmann::json config = nullptr;                  // all keys; null if the run has left no config
  std::optional<int64_t> ranks = std::nullopt;      // unset if unknown
  std::optional<StepTimeline> step = std::nullopt;  // from the run's trace
  std::string no_step = {};                         // why `step` is unset; empty: no trace was asked for
};

// Reads the data of runs. Errors name the folder or file, and the line: a folder has no metrics.jsonl or is given
// twice, or a file is not as the trainer writes it. A missing trace is not an error (RunData::no_step).
std::vector<RunData> read_runs(const std::vector<std::string>& folders);

// The values that a run logged under one key, in order of steps. NaN stands for a number that was not finite.
struct Series {
  std::vector<int64_t> steps = {};
  std::vector<double> values = {};

  bool empty() const { return steps.empty(); }
};
Series series_of(const RunData& run, const std::string& key);

}  // namespace fsdp::trainer
