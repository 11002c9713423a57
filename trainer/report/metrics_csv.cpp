#include "report/metrics_csv.h"

#include <fcntl.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <utility>

#include "fsdp/errors.h"
#include "report/whole_write.h"

namespace fsdp::trainer {

namespace {

std::string cell(const nlohmann::json& value) {
  const bool is_finite = !value.is_null() && !(value.is_number_float() && !std::isfinite(value.get<double>()));
  return is_finite ? value.dump() : "nan";
}

std::string row(const nlohmann::json& line) {
  std::string text;
  for (const std::string& column : csv_columns()) {
    if (&column != &csv_columns().front()) text += ',';
    if (line.contains(column)) text += cell(line.at(column));
  }
  return text + "\n";
}

std::string header() {
  std::string text;
  for (const std::string& column : csv_columns()) text += (text.empty() ? "" : ",") + column;
  return text + "\n";
}

int open_with(const std::string& path, const std::vector<MetricsLine>& rows) {
  std::string text = header();
  for (const MetricsLine& line : rows) text += row(line.values);
  replace_file(path, text);
  const int descriptor = open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (descriptor < 0) throw FileError(path + ": cannot open: " + std::strerror(errno));
  return descriptor;
}

}  // namespace

const std::vector<std::string>& csv_columns() {
  static const std::vector<std::string> columns = {"step",
                                                   "loss",
                                                   "eval_loss",
                                                   "grad_norm",
                                                   "learning_rate",
                                                   "samples_per_second",
                                                   "tokens_per_second",
                                                   "tflops",
                                                   "hardware_tflops",
                                                   "peak_memory_bytes",
                                                   "mapped_file_bytes",
                                                   "peak_device_memory_bytes",
                                                   "pipeline_bubble",
                                                   "loss_scale",
                                                   "skipped",
                                                   "skipped_steps"};
  return columns;
}

MetricsCsv::MetricsCsv(const std::string& path, const std::vector<MetricsLine>& rows, AppendedFile::Say say)
    : file_(path, open_with(path, rows), std::move(say)) {}

void MetricsCsv::write(const nlohmann::json& line) { file_.append(row(line)); }

}  // namespace fsdp::trainer
