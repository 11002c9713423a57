#include "commands/plan_calibrate.h"

#include <chrono>
#include <cstdio>
#include <string>

#include "config/errors.h"
#include "formats/common/output_file.h"
#include "launch/launcher.h"
#include "planner/calibration/calibrated_host.h"
#include "planner/report/pretty_json.h"
#include "planner/report/progress_line.h"
#include "planner/target/cluster_file.h"
#include "report_page/page_file.h"

namespace fsdp::trainer {

namespace {

void write_cluster(const std::string& path, const planner::Cluster& cluster, double seconds) {
  formats::write_file(path, planner::pretty_json(planner::cluster_json(cluster)));
  const int ranks = cluster.ranks(), threads = cluster.host_speed->threads;
  std::printf("%s: times of %d rank%s of %d thread%s on this host, measured in %.0f s; for --cluster %s\n",
              path.c_str(), ranks, ranks == 1 ? "" : "s", threads, threads == 1 ? "" : "s", seconds, path.c_str());
}

}  // namespace

int run_calibration(const PlanCommand& command) {
  check_is_no_rank("--calibrate");
  check_folder_of_page(command.calibrate, "--calibrate");
  const auto began = std::chrono::steady_clock::now();
  planner::ProgressLine line;
  planner::CalibrationOptions options = planner::usual_calibration();
  options.progress = [&](const std::string& part) { line.show("calibrating: " + part); };
  const planner::CalibratedHost host = planner::calibrate_host(command.nproc_per_node, options);
  line.remove();
  if (!host.cluster) return host.status;
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - began;
  write_cluster(command.calibrate, *host.cluster, seconds.count());
  return kExitSuccess;
}

}  // namespace fsdp::trainer
