// `fsdp report`: writes one page with the measurements of one or more runs.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace fsdp::trainer {

struct ReportCommand {
  std::vector<std::string> folders;  // each the output_dir of a run
  std::string out;                   // empty: see add_report
  std::string title;                 // empty: the names of the runs
};

// Adds the subcommand, which fills `command`.
CLI::App* add_report(CLI::App& app, ReportCommand& command);

// Returns the exit status: not 0 when something cannot be read or written.
int run_report_command(const ReportCommand& command);

}  // namespace fsdp::trainer
