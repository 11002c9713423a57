#include "report/progress.h"

#include <fmt/format.h>

namespace fsdp::trainer {

namespace {

std::string memory_text(int64_t bytes) {
  const double mebibytes = static_cast<double>(bytes) / (1 << 20);
  return mebibytes < 1024 ? fmt::format("{:.0f} MiB", mebibytes)
                          : fmt::format("{:.1f} GiB", mebibytes / 1024);
}

}  // namespace

std::string progress_text(const StepMetrics& m, int64_t max_steps) {
  return fmt::format(
      "step {}/{} | loss {:.4f} | grad norm {:.3g} | lr {:.2e} | {:.0f} tokens/s | {:.3g} TFLOPS | {}",
      m.step, max_steps, m.loss, m.grad_norm, m.learning_rate, m.tokens_per_second, m.tflops,
      memory_text(m.peak_memory_bytes));
}

void Progress::show(const StepMetrics& metrics) {
  const std::string text = progress_text(metrics, max_steps_);
  constexpr const char* kClearLine = "\r\033[K";
  fmt::print(out_, "{}{}{}", is_terminal_ ? kClearLine : "", text, is_terminal_ ? "" : "\n");
  line_is_open_ = is_terminal_;
  if (metrics.step == max_steps_) end_line();
  std::fflush(out_);
}

void Progress::say(const std::string& text) {
  end_line();
  fmt::print(out_, "{}\n", text);
  std::fflush(out_);
}

void Progress::end_line() {
  if (line_is_open_) fmt::print(out_, "\n");
  line_is_open_ = false;
}

}  // namespace fsdp::trainer
