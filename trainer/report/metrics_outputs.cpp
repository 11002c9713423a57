#include "report/metrics_outputs.h"

#include <algorithm>
#include <filesystem>

namespace fsdp::trainer {

namespace {

std::string within(const std::string& folder, const char* name) {
  return (std::filesystem::path(folder) / name).string();
}

}  // namespace

MetricsOutputs::MetricsOutputs(const std::string& output_dir, const std::vector<ReportTo>& report_to,
                               AppendedFile::Say say)
    : output_dir_(output_dir),
      report_to_(report_to),
      say_(std::move(say)),
      file_(within(output_dir, "metrics.jsonl"), say_) {}

std::string MetricsOutputs::start(int64_t step, bool keeps) {
  std::string kept;
  if (step == 0) {
    kept = file_.start_over(keeps);
  } else {
    file_.trim();
  }
  if (reports_to(ReportTo::kCsv)) {
    std::vector<MetricsLine> rows = read_metrics(within(output_dir_, "metrics.jsonl"));
    std::erase_if(rows, [&](const MetricsLine& row) { return row.step > step; });
    csv_ = std::make_unique<MetricsCsv>(within(output_dir_, "metrics.csv"), rows, say_);
  }
  if (reports_to(ReportTo::kTensorBoard))
    tensorboard_ = std::make_unique<TensorBoardFile>(within(output_dir_, "runs"), step, say_);
  return kept;
}

std::string MetricsOutputs::finish() {
  std::string missing = file_.finish();
  for (const std::string& text : {csv_ ? csv_->finish() : "", tensorboard_ ? tensorboard_->finish() : ""}) {
    if (!text.empty()) missing += (missing.empty() ? "" : "; ") + text;
  }
  return missing;
}

bool MetricsOutputs::reports_to(ReportTo output) const {
  return std::find(report_to_.begin(), report_to_.end(), output) != report_to_.end();
}

void MetricsOutputs::pass_on(const nlohmann::ordered_json& line) {
  if (csv_) csv_->write(line);
  if (tensorboard_) tensorboard_->write(line);
}

}  // namespace fsdp::trainer
