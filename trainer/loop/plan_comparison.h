// What `fsdp plan` expected of a run, beside what the run measured.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "fsdp/diagnostics.h"
#include "loop/training_run.h"

namespace fsdp::trainer {

struct PlannedFigures {
  std::string file;
  int64_t ranks = 0;
  int64_t parameters = 0;
  bool on_cpus = false;
  std::vector<MemoryCategory> categories;  // of the engine and the optimizer; only `peak` is set
  int64_t bytes = 0;                       // allocated on a device, or those of a rank's process on CPUs
  int64_t pipeline_degree = 1;
  int64_t rank_of_pipeline = 0;        // the rank that the plan is of; 0: any, without a pipeline
  std::optional<double> step_seconds;  // none: the plan has no time
};

// Reads what `fsdp plan --json` printed. Throws a ConfigError that names the file.
PlannedFigures read_planned_figures(const std::string& file);

// Throws a ConfigError if the plan is of a run with other ranks, another device, another number of parameters or
// another pipeline, or of another rank of it than the one that is measured, rank 0.
void check_plan_is_of(const PlannedFigures& planned, const Config& config, int64_t ranks, c10::Device device,
                      int64_t parameters);

struct MeasuredFigures {
  std::vector<MemoryCategory> categories;
  int64_t bytes = 0;        // as PlannedFigures::bytes
  double step_seconds = 0;  // the median
};

// Returns a table.
std::string comparison_text(const PlannedFigures& planned, const MeasuredFigures& measured);

// Measures the times of steps.
class StepClock {
 public:
  StepResult timed(const std::function<StepResult()>& step);
  // Returns the median, without the first step if there are more, or NaN.
  double seconds() const;

 private:
  std::vector<double> seconds_;
};

}  // namespace fsdp::trainer
