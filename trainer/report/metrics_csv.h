// output_dir/metrics.csv: what metrics.jsonl holds, as a table.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "report/metrics_reader.h"

namespace fsdp::trainer {

// A header line, then a row for each step and each evaluation. Cells are empty where a row has nothing to say, and
// `nan` where a number is not finite.
class MetricsCsv {
 public:
  // Writes the whole file anew, with these rows.
  MetricsCsv(const std::string& path, const std::vector<MetricsLine>& rows);
  ~MetricsCsv();
  MetricsCsv(const MetricsCsv&) = delete;
  MetricsCsv& operator=(const MetricsCsv&) = delete;

  // Appends a whole row, with the keys of a line of metrics.jsonl, and hands it to the operating system at once.
  void write(const nlohmann::json& line);

 private:
  std::string path_;
  int descriptor_;
};

// The keys of lines that have a column, in order.
const std::vector<std::string>& csv_columns();

}  // namespace fsdp::trainer
