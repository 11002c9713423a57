// `fsdp train`: runs one rank, or starts the ranks of this host as their parent.
#pragma once

#include "config/cli.h"

namespace fsdp::trainer {

// Runs the command and returns the exit status. Prints errors to stderr. In a rank that failed while other ranks wait
// for it, ends the process at once instead of returning.
int run_train_command(const TrainCommand& command);

}  // namespace fsdp::trainer
