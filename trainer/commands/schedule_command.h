// `fsdp schedule`: shows the order of work of a pipeline, its bubble and its memory, before anything runs.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace fsdp::trainer {

struct ScheduleCommand {
  std::string schedule;  // a name, or a CSV file of torch.distributed.pipelining
  int ranks = 4;
  int stages_per_rank = 1;
  int micro_batches = 8;
  std::vector<double> costs;  // of forward, input gradient, weight gradient; empty: 1 each
  double send = 0;
  std::string csv;  // file to write, or empty
  std::string svg;
  bool communication = false;  // in the CSV file
};

// Adds the subcommand, which fills `command`.
CLI::App* add_schedule(CLI::App& app, ScheduleCommand& command);

// Prints the schedule and writes the files. Returns the exit status: not 0 if a file cannot be read or written, or if
// the schedule cannot be made or cannot run.
int run_schedule_command(const ScheduleCommand& command);

}  // namespace fsdp::trainer
