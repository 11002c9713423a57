#include "planner/calibration/calibrated_host.h"

#include <c10/util/Exception.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "base/error_message.h"
#include "fsdp/rank_environment.h"
#include "launch/launcher.h"
#include "planner/target/cluster_file.h"
#include "report/failure_report.h"
#include "setup/rank_place.h"

namespace fsdp::planner {
namespace {

// A file without a name, which forked processes share. Rank 0 leaves its measurements there for the process that
// started the ranks: it has no threads, and can plan.
class SharedFile {
 public:
  SharedFile() : file_(std::tmpfile(), &std::fclose) {
    TORCH_CHECK(file_ != nullptr, "cannot make a temporary file: ", std::strerror(errno));
  }

  void write(const std::string& text) const {
    const bool written = std::fwrite(text.data(), 1, text.size(), file_.get()) == text.size();
    TORCH_CHECK(written && std::fflush(file_.get()) == 0, "cannot write a temporary file: ", std::strerror(errno));
  }
  std::string read() const {
    std::rewind(file_.get());
    std::string text;
    std::array<char, 1 << 16> part{};
    for (size_t count = 1; count > 0;) {
      count = std::fread(part.data(), 1, part.size(), file_.get());
      text.append(part.data(), count);
    }
    TORCH_CHECK(std::ferror(file_.get()) == 0, "cannot read a temporary file: ", std::strerror(errno));
    return text;
  }

 private:
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
};

std::string calibration_text(const Calibration& calibration) {
  return nlohmann::ordered_json({{"cluster", cluster_json(calibration.cluster)}, {"sharded", calibration.sharded}})
      .dump();
}

Calibration calibration_from(const std::string& text) {
  const nlohmann::json json = nlohmann::json::parse(text);
  return {.cluster = read_cluster(json.at("cluster"), "the calibration"),
          .sharded = json.at("sharded").get<std::vector<double>>()};
}

void measure_as_rank(CalibrationOptions options, const SharedFile& result) {
  const RankEnvironment environment = rank_environment();
  const trainer::PlaceChoice place =
      trainer::choose_place({.device = trainer::DeviceChoice::kCpu}, environment, trainer::places_available());
  if (environment.rank != 0) options.progress = nullptr;
  const Calibration calibration = calibrate(trainer::take_place(place, environment).communicator, options);
  if (environment.rank == 0) result.write(calibration_text(calibration));
}

// Ends the process without any cleanup after an error: other ranks may be waiting for this one, and are woken by its
// end.
int run_rank(const CalibrationOptions& options, const SharedFile& result) {
  try {
    measure_as_rank(options, result);
    return EXIT_SUCCESS;
  } catch (const std::exception& error) {
    const RankEnvironment environment = rank_environment();
    trainer::report_failure(environment.rank, environment.world_size, base::message_of(error));
    std::_Exit(EXIT_FAILURE);
  }
}

}  // namespace

CalibratedHost calibrate_host(int ranks, const CalibrationOptions& options) {
  const SharedFile result;
  const int status = trainer::Launcher({.rank = [&] { return run_rank(options, result); }, .ranks = ranks}).run();
  if (status != 0) return {.status = status};
  Calibration calibration = calibration_from(result.read());
  if (options.progress) options.progress("plans of the sharded runs");
  calibration.cluster.spread = fitted_spread(calibration, options.sharded);
  calibration.cluster.file.clear();
  return {.cluster = std::move(calibration.cluster)};
}

}  // namespace fsdp::planner
