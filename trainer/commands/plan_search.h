// `fsdp plan --search`: looks for the fastest configs that fit, and for those that need the least memory.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "commands/plan_command.h"
#include "config/config.h"
#include "planner/run/plan.h"

namespace fsdp::trainer {

// Prints the result and returns the exit status: kExitSuccess if a candidate fits, kExitTight if one is tight, or else
// kExitDoesNotFit. `config` returns the config of the command with more overrides. Must be called before this process
// starts threads.
int run_plan_search(const PlanCommand& command, const planner::PlanOptions& options,
                    const std::function<Config(const std::vector<std::string>&)>& config);

}  // namespace fsdp::trainer
