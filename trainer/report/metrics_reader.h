// Reads output_dir/metrics.jsonl.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace fsdp::trainer {

// One line: the report of a step or of an evaluation.
struct MetricsLine {
  int64_t step = 0;
  nlohmann::json values;  // the whole line: numbers, booleans, and null for numbers that are not finite

  bool is_evaluation() const { return values.contains("eval_loss"); }
};

// Returns the valid lines, in order. A run that continues from a checkpoint logs the steps after it again, so the line
// of a step invalidates all earlier lines of that step and of later steps. Ignores text after the last line end,
// because it may be in the middle of being written. Throws a FileError ("FILE:LINE: message") if the file cannot
// be read or a line is not such an object.
std::vector<MetricsLine> read_metrics(const std::string& path);

}  // namespace fsdp::trainer
