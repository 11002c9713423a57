// output_dir/metrics.csv: the content of metrics.jsonl as a table.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "report/appended_file.h"
#include "report/metrics_reader.h"

namespace fsdp::trainer {

// Writes a header line, then a row for each step and each evaluation. Cells are empty if a row has no such value, and
// `nan` if a number is not finite.
class MetricsCsv {
 public:
  // Replaces the file by one with these rows.
  MetricsCsv(const std::string& path, const std::vector<MetricsLine>& rows, AppendedFile::Say say);

  // Appends a complete row, with the keys of a line of metrics.jsonl, through AppendedFile.
  void write(const nlohmann::json& line);
  // Calls AppendedFile::finish.
  std::string finish() { return file_.finish(); }

 private:
  AppendedFile file_;
};

// Returns the keys of lines that have a column, in the order of the columns.
const std::vector<std::string>& csv_columns();

}  // namespace fsdp::trainer
