// `fsdp plan --paper`: plans the figures of the FSDP paper.
#pragma once

#include "commands/plan_command.h"

namespace fsdp::trainer {

// Prints the result, writes the page if one is wanted, and returns kExitSuccess, whether or not plans agree with the
// paper. Must be called before this process starts threads.
int run_paper_plans(const PlanCommand& command);

}  // namespace fsdp::trainer
