#include "report/metrics_file.h"

#include <c10/util/StringUtil.h>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "report/whole_write.h"

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

std::string MetricsFile::start_over(bool keeps) {
  const std::filesystem::path path = path_;
  std::filesystem::path copy;
  for (int number = 1; keeps && std::filesystem::file_size(path) > 0; ++number) {
    copy = path.parent_path() / c10::str(path.stem().string(), "-", number, path.extension().string());
    if (std::filesystem::exists(copy)) continue;
    std::filesystem::copy_file(path, copy);
    break;
  }
  cut(0);
  return copy.string();
}

void MetricsFile::trim() {
  std::ifstream file(path_, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const size_t last = text.rfind('\n');
  cut(last == std::string::npos ? 0 : last + 1);
}

void MetricsFile::cut(size_t bytes) {
  if (ftruncate(descriptor_, static_cast<off_t>(bytes)) != 0) fail(path_, "cannot cut the file");
}

nlohmann::ordered_json metrics_line(const StepMetrics& metrics) {
  nlohmann::ordered_json line{{"step", metrics.step},
                              {"loss", metrics.loss},
                              {"grad_norm", metrics.grad_norm},
                              {"learning_rate", metrics.learning_rate},
                              {"samples_per_second", metrics.samples_per_second}};
  if (metrics.tokens_per_second) line["tokens_per_second"] = *metrics.tokens_per_second;
  line["tflops"] = metrics.tflops;
  if (metrics.hardware_tflops) line["hardware_tflops"] = *metrics.hardware_tflops;
  line["peak_memory_bytes"] = metrics.peak_memory_bytes;
  if (metrics.peak_device_memory_bytes) line["peak_device_memory_bytes"] = *metrics.peak_device_memory_bytes;
  if (const auto& scaling = metrics.loss_scaling) {
    line.update(
        {{"loss_scale", scaling->scale}, {"skipped", scaling->skipped}, {"skipped_steps", scaling->skipped_steps}});
  }
  return line;
}

nlohmann::ordered_json metrics_line(const EvalMetrics& metrics) {
  return {{"step", metrics.step}, {"eval_loss", metrics.eval_loss}};
}

void MetricsFile::write(const StepMetrics& metrics) { append(metrics_line(metrics).dump()); }
void MetricsFile::write(const EvalMetrics& metrics) { append(metrics_line(metrics).dump()); }

void MetricsFile::append(const std::string& line) { write_whole(descriptor_, line + "\n", path_); }

}  // namespace fsdp::trainer
