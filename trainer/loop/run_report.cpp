#include "loop/run_report.h"

#include <c10/util/StringUtil.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <stdexcept>
#include <system_error>

#include "base/allocated_memory.h"
#include "loop/exchange.h"
#include "report/run_facts.h"

namespace fsdp::trainer {

namespace {

// Only rank 0 makes it, so that this is a failure of that rank.
void make_output_dir(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error)
    throw std::runtime_error(c10::str("key \"output_dir\": \"", path, "\" cannot be created: ", error.message()));
}

}  // namespace

RunReport::RunReport(const Config& config, const StepWork& work, Communicator& communicator, c10::Device device)
    : config_(config), work_(work), communicator_(communicator), device_(device) {
  if (communicator.rank() != 0) return;
  make_output_dir(config.output.output_dir);
  progress_.emplace(stdout, isatty(STDOUT_FILENO) != 0, config.steps.max_steps);
  file_.emplace(config.output.output_dir, config.output.report_to, [this](const std::string& text) { say(text); });
}

void RunReport::start(int64_t step) {
  if (file_) {
    const std::string kept = file_->start(step, !config_.output.overwrite_output_dir);
    if (!kept.empty()) say("metrics.jsonl of an earlier run is kept as " + kept);
    write_run_facts(config_, communicator_.size());
  }
  memory_.restart();
  last_step_ = step;
  last_time_ = Clock::now();
}

void RunReport::after_step(int64_t step, const StepResult& result, const StepPasses& passes) {
  if (result.skipped) ++skipped_steps_;
  memory_.look();
  if (step % config_.output.logging_steps != 0 && step != config_.steps.max_steps) return;
  const StepMetrics metrics = measure(step, result, passes);
  if (!file_) return;
  file_->write(metrics);
  progress_->show(metrics);
}

void RunReport::after_evaluation(int64_t step, double eval_loss) {
  if (!file_) return;
  file_->write(EvalMetrics{.step = step, .eval_loss = eval_loss});
  progress_->say(c10::str("eval loss ", eval_loss));
}

void RunReport::say(const std::string& text) {
  if (progress_) progress_->say(text);
}

StepMetrics RunReport::measure(int64_t step, const StepResult& result, const StepPasses& passes) {
  const ProcessMemory memory = memory_.look();
  const std::optional<int64_t> device_memory = base::peak_allocated_bytes(device_);
  const auto all = gather_values(communicator_,
                                 {result.loss.value_or(0), result.loss ? 1.0 : 0.0, static_cast<double>(memory.own),
                                  static_cast<double>(memory.mapped), static_cast<double>(device_memory.value_or(0))},
                                 {.name = "metrics", .generation = static_cast<uint64_t>(step)});
  StepMetrics metrics{.step = step, .grad_norm = result.grad_norm, .learning_rate = result.learning_rate};
  if (result.loss_scale) metrics.loss_scaling = {*result.loss_scale, result.skipped, skipped_steps_};
  double losses = 0;
  for (const auto& values : all) losses += values[1];
  for (const auto& values : all) {
    metrics.loss += values[0] / losses;
    metrics.peak_memory_bytes = std::max(metrics.peak_memory_bytes, static_cast<int64_t>(values[2]));
    metrics.mapped_file_bytes = std::max(metrics.mapped_file_bytes, static_cast<int64_t>(values[3]));
    if (!device_memory) continue;
    metrics.peak_device_memory_bytes =
        std::max(metrics.peak_device_memory_bytes.value_or(0), static_cast<int64_t>(values[4]));
  }
  metrics.pipeline_bubble = passes.bubble();
  const auto now = Clock::now();
  const double seconds = std::chrono::duration<double>(now - last_time_).count();
  metrics.samples_per_second = static_cast<double>((step - last_step_) * work_.samples) / seconds;
  if (work_.sample.tokens > 0) {
    metrics.tokens_per_second = metrics.samples_per_second * static_cast<double>(work_.sample.tokens);
  }
  metrics.tflops = metrics.samples_per_second * work_.sample.flops * 1e-12;
  if (work_.recomputes) {
    metrics.hardware_tflops = metrics.samples_per_second * (work_.sample.flops + work_.sample.recomputed_flops) * 1e-12;
  }
  last_step_ = step;
  last_time_ = now;
  return metrics;
}

}  // namespace fsdp::trainer
