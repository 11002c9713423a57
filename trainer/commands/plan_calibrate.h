// `fsdp plan --calibrate`: measures how fast ranks compute and communicate on the CPUs of this host.
#pragma once

#include "commands/plan_command.h"

namespace fsdp::trainer {

// Starts command.nproc_per_node ranks, writes the file command.calibrate, and returns the exit status. Must be called
// before this process starts threads.
int run_calibration(const PlanCommand& command);

}  // namespace fsdp::trainer
