// What a report knows of a run: read from its output_dir.
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
  std::string name = {};                            // unlike those of the others
  std::vector<MetricsLine> lines = {};              // that count
  nlohmann::json config = nullptr;                  // all keys; null where the run has left none
  std::optional<int64_t> ranks = std::nullopt;      // likewise
  std::optional<StepTimeline> step = std::nullopt;  // of its trace
  std::string no_step = {};                         // why there is none; empty: no trace was asked for
};

// Errors name the folder or file, and the line: a folder that holds no metrics.jsonl or is given twice, a file that is
// not as the trainer writes it. A trace that was asked for and is not there (any more) is none.
std::vector<RunData> read_runs(const std::vector<std::string>& folders);

// What a run logged under one key, in order of steps. NaN where it was no finite number.
struct Series {
  std::vector<int64_t> steps = {};
  std::vector<double> values = {};

  bool empty() const { return steps.empty(); }
};
Series series_of(const RunData& run, const std::string& key);

}  // namespace fsdp::trainer
