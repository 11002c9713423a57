// The outputs for the metrics of a run: metrics.jsonl and the outputs that `report_to` names.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "config/config.h"
#include "report/metrics_csv.h"
#include "report/metrics_file.h"
#include "report/tensorboard_file.h"

namespace fsdp::trainer {

class MetricsOutputs {
 public:
  // Opens output_dir/metrics.jsonl, and locks output_dir against other runs (MetricsFile). `report_to`: further
  // outputs, output_dir/metrics.csv and output_dir/runs. `say`: receives the messages of AppendedFile for all outputs.
  MetricsOutputs(const std::string& output_dir, const std::vector<ReportTo>& report_to,
                 AppendedFile::Say say = say_on_stderr);

  // Must be called once, after `step` steps of the run and before the first write: 0 begins metrics.jsonl anew, a
  // larger number continues it. Returns the result of MetricsFile::start_over(keeps) if metrics.jsonl begins anew, and
  // an empty string otherwise. Throws an error if metrics.csv must continue from a line of metrics.jsonl that cannot be
  // read.
  std::string start(int64_t step, bool keeps = true);

  template <typename Metrics>
  void write(const Metrics& metrics) {
    file_.write(metrics);
    pass_on(metrics_line(metrics));
  }
  // Tries once more to write lines that could not be written. Returns how many lines the files lack, and why, or an
  // empty string if they lack none.
  std::string finish();

 private:
  bool reports_to(ReportTo output) const;
  void pass_on(const nlohmann::ordered_json& line);

  std::string output_dir_;
  std::vector<ReportTo> report_to_;
  AppendedFile::Say say_;
  MetricsFile file_;
  std::unique_ptr<MetricsCsv> csv_;
  std::unique_ptr<TensorBoardFile> tensorboard_;
};

}  // namespace fsdp::trainer
