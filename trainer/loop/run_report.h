// The measurements of a run: gathered from all ranks, shown and written by rank 0.
#pragma once

#include <chrono>
#include <optional>

#include "config/config.h"
#include "fsdp/communicator.h"
#include "loop/training_run.h"
#include "report/metrics_outputs.h"
#include "report/process_memory.h"
#include "report/progress.h"
#include "tasks/trained_model.h"

namespace fsdp::trainer {

// The work of one optimizer step on all ranks together.
struct StepWork {
  int64_t samples = 0;
  SampleWork sample;        // of each sample
  bool recomputes = false;  // whether activation checkpointing is on
};

class RunReport {
 public:
  // Creates, on rank 0, output_dir with metrics.jsonl (and the outputs that report_to names), and locks them against
  // other runs. `device`: the device of the training. `config` and `communicator` must outlive this object.
  RunReport(const Config& config, const StepWork& work, Communicator& communicator, c10::Device device = c10::kCPU);

  // Must be called after `step` steps of this run: 0 empties metrics.jsonl, a larger number continues it. Starts the
  // clock of the first report.
  void start(int64_t step);
  // Must be called after every step (counted from 1) on all ranks. Reports every logging_steps steps and the last step.
  // `passes`: those of the step.
  void after_step(int64_t step, const StepResult& result, const StepPasses& passes);
  void after_evaluation(int64_t step, double eval_loss);
  int64_t skipped_steps() const { return skipped_steps_; }
  void set_skipped_steps(int64_t skipped_steps) { skipped_steps_ = skipped_steps; }
  // The most memory of this process since start(), without mapped files.
  int64_t peak_memory() { return memory_.look().own; }
  // Prints a line of text on rank 0.
  void say(const std::string& text);
  // Must be called after the last line. Returns which lines could not be written to metrics.jsonl and the files of
  // report_to, or an empty string if the files are complete or this is not rank 0.
  std::string finish() { return file_ ? file_->finish() : ""; }

 private:
  using Clock = std::chrono::steady_clock;
  StepMetrics measure(int64_t step, const StepResult& result, const StepPasses& passes);

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
