// output_dir/metrics.jsonl: one JSON object per line, for each logged step and each evaluation.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "report/appended_file.h"

namespace fsdp::trainer {

// The measurements of an optimizer step.
struct StepMetrics {
  int64_t step = 0;                                        // from 1
  double loss = 0;                                         // mean over the global batch
  double grad_norm = 0;                                    // before clipping
  double learning_rate = 0;                                // that the step used
  double samples_per_second = 0;                           // of all ranks together, since the last report
  std::optional<double> tokens_per_second = std::nullopt;  // likewise, if samples are made of tokens
  double tflops = 0;  // 10^12 floating point operations of the model per second, all ranks together
  // With activation checkpointing: the same, including recomputed operations.
  std::optional<double> hardware_tflops = std::nullopt;
  int64_t peak_memory_bytes = 0;  // peak of ProcessMemory::own, the largest over ranks
  int64_t mapped_file_bytes = 0;  // peak of ProcessMemory::mapped, the largest over ranks
  // On GPUs only: peak memory of tensors on a GPU, the largest over ranks.
  std::optional<int64_t> peak_device_memory_bytes = std::nullopt;
  // With a pipeline only: the share of the step, from 0 to 1, in which a rank of the pipeline ran no pass, on average
  // over the ranks of a pipeline.
  std::optional<double> pipeline_bubble = std::nullopt;
  // With fp16 only.
  struct LossScaling {
    double scale = 1;           // that the step used
    bool skipped = false;       // whether a gradient overflowed, so that nothing was updated
    int64_t skipped_steps = 0;  // in the run so far
  };
  std::optional<LossScaling> loss_scaling = std::nullopt;
};

struct EvalMetrics {
  int64_t step = 0;  // optimizer steps before the evaluation
  double eval_loss = 0;
};

// Returns the line of metrics.jsonl. The file stores numbers that are not finite as null.
nlohmann::ordered_json metrics_line(const StepMetrics& metrics);
nlohmann::ordered_json metrics_line(const EvalMetrics& metrics);

class MetricsFile {
 public:
  // Opens or creates the file, and locks its folder against other runs while this object and its process exist. Throws
  // an error if another run holds the lock. Keeps the content of the file.
  explicit MetricsFile(const std::string& path, AppendedFile::Say say = say_on_stderr);

  // Empties the file, for a run from the beginning. With `keeps`, copies existing content to a new file beside it
  // ("metrics-1.jsonl") and returns its path; otherwise, or if the file was empty, returns an empty string.
  std::string start_over(bool keeps);
  // Removes an incomplete last line, for a run that continues.
  void trim();

  // Append a complete line, through AppendedFile. Numbers that are not finite become null.
  void write(const StepMetrics& metrics);
  void write(const EvalMetrics& metrics);
  // Calls AppendedFile::finish.
  std::string finish() { return file_.finish(); }

 private:
  AppendedFile file_;
};

}  // namespace fsdp::trainer
