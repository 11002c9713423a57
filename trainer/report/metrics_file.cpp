#include "report/metrics_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "fsdp/errors.h"

namespace fsdp::trainer {

namespace {

// Returns a descriptor that holds the lock of the folder while it is open.
int open_and_lock(const std::string& path) {
  const int descriptor = open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
  if (descriptor < 0) throw FileError(path + ": cannot create the file: " + std::strerror(errno));
  if (flock(descriptor, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    close(descriptor);
    throw FileError(path + ": another run is writing to this folder; set another output_dir");
  }
  return descriptor;
}

}  // namespace

MetricsFile::MetricsFile(const std::string& path, AppendedFile::Say say)
    : file_(path, open_and_lock(path), std::move(say)) {}

std::string MetricsFile::start_over(bool keeps) {
  const std::filesystem::path path = file_.path();
  std::filesystem::path copy;
  for (int number = 1; keeps && std::filesystem::file_size(path) > 0; ++number) {
    copy = path.parent_path() / c10::str(path.stem().string(), "-", number, path.extension().string());
    if (std::filesystem::exists(copy)) continue;
    std::filesystem::copy_file(path, copy);
    break;
  }
  file_.cut(0);
  return copy.string();
}

void MetricsFile::trim() {
  std::ifstream file(file_.path(), std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const size_t last = text.rfind('\n');
  file_.cut(last == std::string::npos ? 0 : last + 1);
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
  line["mapped_file_bytes"] = metrics.mapped_file_bytes;
  if (metrics.peak_device_memory_bytes) line["peak_device_memory_bytes"] = *metrics.peak_device_memory_bytes;
  if (metrics.pipeline_bubble) line["pipeline_bubble"] = *metrics.pipeline_bubble;
  if (const auto& scaling = metrics.loss_scaling) {
    line.update(
        {{"loss_scale", scaling->scale}, {"skipped", scaling->skipped}, {"skipped_steps", scaling->skipped_steps}});
  }
  return line;
}

nlohmann::ordered_json metrics_line(const EvalMetrics& metrics) {
  return {{"step", metrics.step}, {"eval_loss", metrics.eval_loss}};
}

void MetricsFile::write(const StepMetrics& metrics) { file_.append(metrics_line(metrics).dump() + "\n"); }
void MetricsFile::write(const EvalMetrics& metrics) { file_.append(metrics_line(metrics).dump() + "\n"); }

}  // namespace fsdp::trainer
