// The progress of a run as a person sees it.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>

#include "report/metrics_file.h"

namespace fsdp::trainer {

// Shows each report of a step: on a terminal in one line that is overwritten, otherwise in a line of its own.
class Progress {
 public:
  // `out` must outlive this object.
  Progress(std::FILE* out, bool is_terminal, int64_t max_steps)
      : out_(out), is_terminal_(is_terminal), max_steps_(max_steps) {}

  void show(const StepMetrics& metrics);
  // Prints a line that is not overwritten.
  void say(const std::string& text);

 private:
  void end_line();

  std::FILE* out_;
  bool is_terminal_;
  int64_t max_steps_;
  bool line_is_open_ = false;
};

// Returns a text such as
// "step 3/10 | loss 2.9613 | grad norm 1.02 | lr 4.50e-05 | 812 tokens/s | 0.66 TFLOPS | 1.2 GiB".
std::string progress_text(const StepMetrics& metrics, int64_t max_steps);

}  // namespace fsdp::trainer
