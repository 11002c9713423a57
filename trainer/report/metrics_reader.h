// Reads output_dir/metrics.jsonl again.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace fsdp::trainer {

// One line: what was reported of a step or of an evaluation.
struct MetricsLine {
  int64_t step = 0;
  nlohmann::json values;  // the whole line: numbers, booleans, and null for what is no finite number

  bool is_evaluation() const { return values.contains("eval_loss"); }
};

// The lines that count, in their order: a run that goes on from a checkpoint logs again what lies behind it, so a step
// takes back everything that was logged of it and of later ones before. What stands behind the last line end is left
// out, as it may be in the middle of being written. Errors (std::runtime_error, "FILE:LINE: what"): a file that cannot
// be read, and a line that is not such an object.
std::vector<MetricsLine> read_metrics(const std::string& path);

}  // namespace fsdp::trainer
