// The program `fsdp`.
#include <csignal>

#include "base/end_process.h"
#include "commands/train_command.h"
#include "config/cli.h"
#include "config/errors.h"
#include "report/process_memory.h"
#include "setup/rank_place.h"

namespace fsdp::trainer {
namespace {

int run(int argc, char** argv) {
  std::signal(SIGXFSZ, SIG_IGN);  // a write beyond the file size limit returns an error
  const auto command = parse_command_line(argc, argv);
  if (const auto* finished = std::get_if<Finished>(&command)) return finished->exit_status;
  if (const auto* plan = std::get_if<PlanCommand>(&command)) return run_plan_command(*plan);
  if (const auto* schedule = std::get_if<ScheduleCommand>(&command)) return run_schedule_command(*schedule);
  if (const auto* convert = std::get_if<ConvertCommand>(&command)) return run_convert_command(*convert);
  if (const auto* inspect = std::get_if<InspectCommand>(&command)) return run_inspect_command(*inspect);
  if (const auto* report = std::get_if<ReportCommand>(&command)) return run_report_command(*report);
  keep_freed_memory();
  open_cuda_library();
  return run_train_command(std::get<TrainCommand>(command));
}

}  // namespace
}  // namespace fsdp::trainer

int main(int argc, char** argv) { fsdp::base::end_process(fsdp::trainer::run(argc, argv)); }
