// output_dir/metrics.csv: what metrics.jsonl holds, as a table.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "report/appended_file.h"
#include "report/metrics_reader.h"

namespace fsdp::trainer {

// A header line, then a row for each step and each evaluation. Cells are empty where a row has nothing to say, and
// `nan` where a number is not finite.
class MetricsCsv {
 public:
  // Writes the whole file anew, with these rows.
  MetricsCsv(const std::string& path, const std::vector<MetricsLine>& rows, AppendedFile::Say say);

  // Appends a whole row, with the keys of a line of metrics.jsonl, as AppendedFile does.
  void write(const nlohmann::json& line);
  // AppendedFile::finish.
  std::string finish() { return file_.finish(); }

 private:
  AppendedFile file_;
};

// The keys of lines that have a column, in order.
const std::vector<std::string>& csv_columns();

}  // namespace fsdp::trainer
