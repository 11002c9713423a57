// The figures of a run: gathered from all ranks, shown and written by rank 0.
#pragma once

#include <chrono>
#include <optional>

#include "config/config.h"
#include "fsdp/communicator.h"
#include "report/metrics_outputs.h"
#include "report/process_memory.h"
#include "report/progress.h"
#include "training/trained_model.h"
#include "training/training_run.h"

namespace fsdp::trainer {

// The work of one optimizer step over all ranks.
struct StepWork {
  int64_t samples = 0;
  SampleWork sample;        // of each
  bool recomputes = false;  // whether there is activation checkpointing
};

class RunReport {
 public:
  // On rank 0 creates output_dir and metrics.jsonl in it (and what report_to names), and keeps other runs from them.
  // `device`: where training runs. `config` and `communicator` must outlive this object.
  RunReport(const Config& config, const StepWork& work, Communicator& communicator, c10::Device device = c10::kCPU);

  // Behind `step` steps of this run: 0 empties metrics.jsonl, more continues it. Starts the clock of the first report.
  void start(int64_t step);
  // To be called after every step (counted from 1) on all ranks; reports every logging_steps and the last.
  void after_step(int64_t step, const StepResult& result);
  void after_evaluation(int64_t step, double eval_loss);
  int64_t skipped_steps() const { return skipped_steps_; }
  void set_skipped_steps(int64_t skipped_steps) { skipped_steps_ = skipped_steps; }
  // A line of text, on rank 0.
  void say(const std::string& text);
  // After the last line. What metrics.jsonl and the files of report_to lack, as they could not be written; empty: they
  // are whole, or this is not rank 0.
  std::string finish() { return file_ ? file_->finish() : ""; }

 private:
  using Clock = std::chrono::steady_clock;
  StepMetrics measure(int64_t step, const StepResult& result);

  const Config& config_;
  StepWork work_;
  Communicator& communicator_;
  c10::Device device_;
  std::optional<Progress> progress_;    // on rank 0
  std::optional<MetricsOutputs> file_;  // on rank 0
  PeakMemory memory_;
  int64_t last_step_ = 0;
  int64_t skipped_steps_ = 0;
  Clock::time_point last_time_;
};

}  // namespace fsdp::trainer
