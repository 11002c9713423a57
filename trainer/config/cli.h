// The command line.
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "commands/convert_command.h"
#include "commands/inspect_command.h"
#include "commands/plan_command.h"
#include "commands/schedule_command.h"
#include "report_page/report_command.h"

namespace fsdp::trainer {

// fsdp train
struct TrainCommand {
  std::string config_path;
  std::vector<std::string> overrides;  // KEY=VALUE
  bool save_config = false;
  std::optional<int> nproc_per_node;
  std::string plan;  // the output of `fsdp plan --json`; empty: none
};

// The result if nothing is left to do: the requested help or version, or an error, was printed.
struct Finished {
  int exit_status = 0;
};

using Command =
    std::variant<TrainCommand, PlanCommand, ScheduleCommand, ConvertCommand, InspectCommand, ReportCommand, Finished>;

// Parses the command line. Prints help and version to stdout, and usage errors (exit status 2) to stderr.
Command parse_command_line(int argc, const char* const* argv);

}  // namespace fsdp::trainer
