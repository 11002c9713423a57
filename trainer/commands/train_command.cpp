#include "commands/train_command.h"

#include <ATen/Context.h>

#include <cstdio>
#include <cstdlib>
#include <exception>

#include "base/error_message.h"
#include "commands/command_error.h"
#include "config/config_checks.h"
#include "config/config_reader.h"
#include "config/errors.h"
#include "fsdp/communicator.h"
#include "fsdp/rank_environment.h"
#include "launch/launcher.h"
#include "loop/plan_comparison.h"
#include "loop/train_rank.h"
#include "report/failure_report.h"
#include "saving/start_point.h"
#include "setup/distinct_parameters.h"
#include "setup/memory_needs.h"
#include "setup/rank_place.h"
#include "setup/training_inputs.h"

namespace fsdp::trainer {

namespace {

std::optional<PlannedFigures> plan_of(const TrainCommand& command) {
  if (command.plan.empty()) return std::nullopt;
  return read_planned_figures(command.plan);
}

RankEnvironment read_rank_environment() {
  try {
    return rank_environment();
  } catch (const std::exception& error) {
    throw ConfigError(base::message_of(error));
  }
}

// Ends the process without any cleanup: other ranks may be waiting for this rank, and this rank's communicator threads
// for them. The end closes the connections and thereby wakes the other ranks.
[[noreturn]] void end_failed_rank(const RankEnvironment& environment, const std::exception& error) {
  std::fflush(stdout);
  if (dynamic_cast<const ReportedFailure*>(&error)) {
    record_failure(error.what());
  } else {
    report_failure(environment.rank, environment.world_size, base::message_of(error));
  }
  std::_Exit(exit_status_of(error));
}

int run_as_rank(const TrainCommand& command) {
  const RankEnvironment environment = read_rank_environment();
  try {
    const Config config = read_config(command.config_path, command.overrides);
    check_for_world_size(config, environment.world_size);
    const RunEnd end = train_rank(config, environment, {.save_config = command.save_config, .plan = plan_of(command)});
    return end == RunEnd::kTerminated ? kExitTerminated : kExitSuccess;
  } catch (const std::exception& error) {
    end_failed_rank(environment, error);
  }
}

// Checks everything that can be checked before ranks run, so that a mistake causes one message instead of one per rank.
void check_for_ranks(const Config& config, const TrainCommand& command, int ranks) {
  const PlaceChoice choice =
      choose_place(config.communication, {.world_size = ranks, .local_world_size = ranks}, places_available());
  const TrainingInputs inputs = open_training_inputs(config, ranks);
  check_memory(config, inputs.model->module(), *inputs.train, {ranks, ranks, choice.device});
  if (const auto plan = plan_of(command)) {
    check_plan_is_of(*plan, config, ranks, choice.device, parameter_count(inputs.model->module()));
  }
  choose_start(config);
}

int launch(const TrainCommand& command) {
  const int ranks = *command.nproc_per_node;
  check_is_no_rank("--nproc-per-node");
  const Config config = read_config(command.config_path, command.overrides);
  check_for_world_size(config, ranks);
  // Before the checks, which may use a device and threads.
  Launcher launcher({.rank = [&command] { return run_as_rank(command); }, .ranks = ranks});
  check_for_ranks(config, command, ranks);
  return launcher.run();
}

}  // namespace

int run_train_command(const TrainCommand& command) {
  try {
    return command.nproc_per_node ? launch(command) : run_as_rank(command);
  } catch (const std::exception& error) {
    return report_error(error);
  }
}

}  // namespace fsdp::trainer
