#include "commands/schedule_command.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <sstream>

#include "base/error_message.h"
#include "commands/schedule_drawing.h"
#include "config/errors.h"
#include "fsdp/pipeline_schedule.h"

namespace fsdp::trainer {
namespace {

PipelineSchedule schedule_of(const ScheduleCommand& command) {
  if (is_pipeline_schedule_name(command.schedule)) {
    return make_pipeline_schedule(command.schedule, command.ranks, command.stages_per_rank, command.micro_batches);
  }
  std::ifstream file(command.schedule);
  TORCH_CHECK(file, "\"", command.schedule, "\" is neither a schedule (one of ",
              c10::Join(", ", pipeline_schedule_names()), ") nor a file that can be read");
  return read_pipeline_csv(file, command.schedule);
}

std::string count_of(int count, const char* what) { return c10::str(count, " ", what, count == 1 ? "" : "s"); }
std::string micro_batches_of(int count) { return c10::str(count, count == 1 ? " micro-batch" : " micro-batches"); }

std::string title_of(const ScheduleCommand& command, const PipelineSchedule& schedule, double bubble) {
  char percent[32];
  std::snprintf(percent, sizeof(percent), "%.1f %%", 100 * bubble);
  return c10::str(command.schedule, ": ", count_of(schedule.stages(), "stage"), " on ",
                  count_of(schedule.ranks(), "rank"), ", ", micro_batches_of(schedule.micro_batches), ", bubble ",
                  percent);
}

void write(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  file << text;
  file.close();
  TORCH_CHECK(file, "cannot write ", path);
}

void show(const ScheduleCommand& command) {
  const PipelineSchedule given = schedule_of(command);
  const PipelineSchedule complete = has_passes_only(given) ? with_communication(given) : given;
  const PipelineScheduleFacts facts = check_pipeline_schedule(complete);
  StageCosts costs;
  if (!command.costs.empty()) costs = {command.costs[0], command.costs[1], command.costs[2]};
  costs.send = command.send;
  const PipelineSimulation simulation =
      simulate_pipeline(complete, std::vector<StageCosts>(static_cast<size_t>(complete.stages()), costs));
  const std::string title = title_of(command, complete, simulation.bubble);
  std::printf("%s\nmicro-batches in flight at most, by rank: %s\n%s", title.c_str(),
              c10::Join(", ", facts.most_in_flight_of_rank).c_str(), schedule_text(complete, simulation).c_str());
  if (!command.csv.empty()) {
    std::ostringstream csv;
    write_pipeline_csv(csv, command.communication ? complete : given);
    write(command.csv, csv.str());
  }
  if (!command.svg.empty()) write(command.svg, schedule_svg(complete, simulation, title));
}

}  // namespace

CLI::App* add_schedule(CLI::App& app, ScheduleCommand& command) {
  CLI::App* schedule =
      app.add_subcommand("schedule", "Show the order of work of a pipeline: who waits, and how much is in flight");
  schedule->footer("");  // without the config's keys
  schedule
      ->add_option("schedule", command.schedule,
                   c10::str("One of ", c10::Join(", ", pipeline_schedule_names()),
                            "; or a CSV file of torch.distributed.pipelining"))
      ->required();
  schedule->add_option("--ranks", command.ranks, "Ranks of the pipeline; not for a file")->capture_default_str();
  schedule->add_option("--stages-per-rank", command.stages_per_rank, "Stages of each rank; not for a file")
      ->capture_default_str();
  schedule->add_option("--micro-batches", command.micro_batches, "Micro-batches of a step; not for a file")
      ->capture_default_str();
  schedule
      ->add_option("--costs", command.costs,
                   "Times of a forward pass, of the gradients of its inputs, and of those of its weights; 1,1,1 if not "
                   "given")
      ->delimiter(',')
      ->expected(3)
      ->check(CLI::NonNegativeNumber);
  schedule->add_option("--send", command.send, "Time of a message between two ranks, in the same unit")
      ->check(CLI::NonNegativeNumber);
  schedule->add_option("--csv", command.csv, "Write the schedule to this file, in the form of torch's");
  schedule->add_flag("--communication", command.communication, "With sends and receives in that file");
  schedule->add_option("--svg", command.svg, "Draw the schedule into this file");
  return schedule;
}

int run_schedule_command(const ScheduleCommand& command) {
  try {
    show(command);
    return kExitSuccess;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "fsdp schedule: %s\n", base::message_of(error).c_str());
  }
  return kExitFailure;
}

}  // namespace fsdp::trainer
