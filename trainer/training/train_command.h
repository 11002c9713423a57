// `fsdp train`: as one rank of several, or as the parent that starts them.
#pragma once

#include "config/cli.h"

namespace fsdp::trainer {

// Runs the command and returns the exit status. Errors are printed to stderr. As a rank that failed while its
// peers wait, it ends the process at once instead of returning.
int run_train_command(const TrainCommand& command);

}  // namespace fsdp::trainer
