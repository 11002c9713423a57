// Calibrates the CPUs of this host: starts ranks, and fits a cluster to their measurements.
#pragma once

#include <optional>

#include "planner/calibration/calibrate.h"

namespace fsdp::planner {

struct CalibratedHost {
  int status = 0;                       // Launcher::run: of the first rank that failed, or of a signal
  std::optional<Cluster> cluster = {};  // if none failed
};

// Starts `ranks` processes on this host; options.progress is called in that of rank 0. Must be called before this
// process starts threads.
CalibratedHost calibrate_host(int ranks, const CalibrationOptions& options);

}  // namespace fsdp::planner
