#include "report/progress.h"

#include <array>
#include <cmath>

namespace fsdp::trainer {

namespace {

std::string memory_text(int64_t bytes) {
  const double mebibytes = static_cast<double>(bytes) / (1 << 20);
  std::array<char, 64> text{};
  if (mebibytes < 1024) {
    std::snprintf(text.data(), text.size(), "%.0f MiB", mebibytes);
  } else {
    std::snprintf(text.data(), text.size(), "%.1f GiB", mebibytes / 1024);
  }
  return text.data();
}

std::string speed_text(const StepMetrics& metrics) {
  std::array<char, 64> text{};
  if (metrics.tokens_per_second) {
    std::snprintf(text.data(), text.size(), "%.0f tokens/s", *metrics.tokens_per_second);
  } else {
    const char* form = metrics.samples_per_second < 100 ? "%.3g samples/s" : "%.0f samples/s";
    std::snprintf(text.data(), text.size(), form, metrics.samples_per_second);
  }
  return text.data();
}

std::string scaling_text(const StepMetrics::LossScaling& scaling) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), " | loss scale %.6g%s", scaling.scale, scaling.skipped ? ", skipped" : "");
  return text.data();
}

}  // namespace

std::string progress_text(const StepMetrics& m, int64_t max_steps) {
  std::array<char, 400> text{};
  std::snprintf(
      text.data(), text.size(), "step %lld/%lld | loss %.4f | grad norm %.3g | lr %.2e | %s | %.3g TFLOPS | %s",
      static_cast<long long>(m.step), static_cast<long long>(max_steps), m.loss, std::abs(m.grad_norm), m.learning_rate,
      speed_text(m).c_str(), m.tflops, memory_text(m.peak_device_memory_bytes.value_or(m.peak_memory_bytes)).c_str());
  return text.data() + (m.loss_scaling ? scaling_text(*m.loss_scaling) : "");
}

void Progress::show(const StepMetrics& metrics) {
  const std::string text = progress_text(metrics, max_steps_);
  constexpr const char* kClearLine = "\r\033[K";
  std::fprintf(out_, "%s%s%s", is_terminal_ ? kClearLine : "", text.c_str(), is_terminal_ ? "" : "\n");
  line_is_open_ = is_terminal_;
  if (metrics.step == max_steps_) end_line();
  std::fflush(out_);
}

void Progress::say(const std::string& text) {
  end_line();
  std::fprintf(out_, "%s\n", text.c_str());
  std::fflush(out_);
}

void Progress::end_line() {
  if (line_is_open_) std::fputc('\n', out_);
  line_is_open_ = false;
}

}  // namespace fsdp::trainer
