// output_dir/metrics.jsonl: one JSON object a line, for each logged step and each evaluation.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "report/appended_file.h"

namespace fsdp::trainer {

// What is reported of an optimizer step.
struct StepMetrics {
  int64_t step = 0;                                        // from 1
  double loss = 0;                                         // mean over the global batch
  double grad_norm = 0;                                    // before clipping
  double learning_rate = 0;                                // that the step used
  double samples_per_second = 0;                           // of all ranks together, since the last report
  std::optional<double> tokens_per_second = std::nullopt;  // likewise, where samples are made of tokens
  double tflops = 0;  // 10^12 floating point operations of the model a second, of all ranks together
  // With activation checkpointing: likewise, with what is computed again.
  std::optional<double> hardware_tflops = std::nullopt;
  int64_t peak_memory_bytes = 0;  // own memory (ProcessMemory) of the rank that needed most, on its host
  int64_t mapped_file_bytes = 0;  // the most of mapped files that was in a rank's memory
  // On GPUs only: the same of the tensors on them.
  std::optional<int64_t> peak_device_memory_bytes = std::nullopt;
  // With fp16 only.
  struct LossScaling {
    double scale = 1;           // that the step used
    bool skipped = false;       // whether a gradient overflowed, so that nothing was updated
    int64_t skipped_steps = 0;  // of the run so far
  };
  std::optional<LossScaling> loss_scaling = std::nullopt;
};

struct EvalMetrics {
  int64_t step = 0;  // optimizer steps before it
  double eval_loss = 0;
};

// The line of metrics.jsonl; there, numbers that are not finite become null.
nlohmann::ordered_json metrics_line(const StepMetrics& metrics);
nlohmann::ordered_json metrics_line(const EvalMetrics& metrics);

class MetricsFile {
 public:
  // Opens or creates the file, and keeps other runs from its folder as long as this object and its process last. An
  // error when another run does so. What is in the file stays.
  explicit MetricsFile(const std::string& path, AppendedFile::Say say = say_on_stderr);

  // Empties the file, for a run from the beginning. With `keeps`, a copy of what is in it stays beside it under a name
  // that nothing has yet ("metrics-1.jsonl"), which is returned; empty: none.
  std::string start_over(bool keeps);
  // For a run that goes on: removes what is left of a line that was not written to its end.
  void trim();

  // Each appends a whole line, as AppendedFile does. Numbers that are not finite become null.
  void write(const StepMetrics& metrics);
  void write(const EvalMetrics& metrics);
  // AppendedFile::finish.
  std::string finish() { return file_.finish(); }

 private:
  AppendedFile file_;
};

}  // namespace fsdp::trainer
