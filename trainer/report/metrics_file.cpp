#include "report/metrics_file.h"

#include <c10/util/StringUtil.h>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace fsdp::trainer {

namespace {

[[noreturn]] void fail(const std::string& path, const std::string& what) {
  throw std::runtime_error(c10::str(path, ": ", what, ": ", std::strerror(errno)));
}

}  // namespace

MetricsFile::MetricsFile(const std::string& path)
    : path_(path), descriptor_(open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666)) {
  if (descriptor_ < 0) fail(path_, "cannot create the file");
  if (flock(descriptor_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    close(descriptor_);
    throw std::runtime_error(path_ + ": another run is writing to this folder; set another output_dir");
  }
}

MetricsFile::~MetricsFile() { close(descriptor_); }

void MetricsFile::start_over() { cut(0); }

void MetricsFile::trim() {
  std::ifstream file(path_, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const size_t last = text.rfind('\n');
  cut(last == std::string::npos ? 0 : last + 1);
}

void MetricsFile::cut(size_t bytes) {
  if (ftruncate(descriptor_, static_cast<off_t>(bytes)) != 0) fail(path_, "cannot cut the file");
}

void MetricsFile::write(const StepMetrics& metrics) {
  nlohmann::ordered_json line{{"step", metrics.step},
                              {"loss", metrics.loss},
                              {"grad_norm", metrics.grad_norm},
                              {"learning_rate", metrics.learning_rate},
                              {"samples_per_second", metrics.samples_per_second}};
  if (metrics.tokens_per_second) line["tokens_per_second"] = *metrics.tokens_per_second;
  line.update({{"tflops", metrics.tflops}, {"peak_memory_bytes", metrics.peak_memory_bytes}});
  if (metrics.peak_device_memory_bytes) line["peak_device_memory_bytes"] = *metrics.peak_device_memory_bytes;
  if (const auto& scaling = metrics.loss_scaling) {
    line.update(
        {{"loss_scale", scaling->scale}, {"skipped", scaling->skipped}, {"skipped_steps", scaling->skipped_steps}});
  }
  append(line.dump());
}

void MetricsFile::write(const EvalMetrics& metrics) {
  append(nlohmann::ordered_json{{"step", metrics.step}, {"eval_loss", metrics.eval_loss}}.dump());
}

void MetricsFile::append(const std::string& line) {
  const std::string text = line + "\n";
  for (size_t done = 0; done < text.size();) {
    const ssize_t written = ::write(descriptor_, text.data() + done, text.size() - done);
    if (written < 0 && errno != EINTR) fail(path_, "cannot write");
    if (written > 0) done += static_cast<size_t>(written);
  }
}

}  // namespace fsdp::trainer
