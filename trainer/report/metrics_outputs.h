// Where the metrics of a run go: metrics.jsonl, and what `report_to` names.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "report/metrics_csv.h"
#include "report/metrics_file.h"
#include "report/tensorboard_file.h"

namespace fsdp::trainer {

class MetricsOutputs {
 public:
  // Opens output_dir/metrics.jsonl, and keeps other runs from output_dir (MetricsFile). `report_to`: of "csv"
  // (output_dir/metrics.csv) and "tensorboard" (output_dir/runs).
  // `say`: takes the messages of AppendedFile on any of them.
  MetricsOutputs(const std::string& output_dir, const std::vector<std::string>& report_to,
                 AppendedFile::Say say = say_on_stderr);

  // Behind `step` steps of the run: 0 begins metrics.jsonl anew, more continues it. To be called once, before the first
  // write. Returns what MetricsFile::start_over does, with `keeps`, where it begins anew. Errors: a line of
  // metrics.jsonl that metrics.csv is to go on from cannot be read.
  std::string start(int64_t step, bool keeps = true);

  template <typename Metrics>
  void write(const Metrics& metrics) {
    file_.write(metrics);
    pass_on(metrics_line(metrics));
  }
  // Tries once more to write lines that could not be written. Says how many the files lack, and why; empty: none.
  std::string finish();

 private:
  bool reports_to(const std::string& name) const;
  void pass_on(const nlohmann::ordered_json& line);

  std::string output_dir_;
  std::vector<std::string> report_to_;
  AppendedFile::Say say_;
  MetricsFile file_;
  std::unique_ptr<MetricsCsv> csv_;
  std::unique_ptr<TensorBoardFile> tensorboard_;
};

}  // namespace fsdp::trainer
