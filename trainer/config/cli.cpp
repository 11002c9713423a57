#include "config/cli.h"

#include <CLI/CLI.hpp>
#include <iostream>

#include "config/config_doc.h"
#include "config/errors.h"
#include "planner/target/cluster_doc.h"

namespace fsdp::trainer {

namespace {

constexpr const char* kVersion = "fsdp " FSDP_VERSION " (LibTorch " FSDP_LIBTORCH_VERSION ")";

constexpr const char* kDescription =
    "Fine-tunes Hugging Face models, or trains models from scratch, with parameters sharded over ranks (FSDP).\n\n"
    "  fsdp train --config-path config.json --nproc-per-node 2\n"
    "  torchrun --no-python --nproc-per-node 2 fsdp train --config-path config.json\n"
    "  srun -n 2 fsdp train --config-path config.json\n"
    "  MASTER_ADDR=localhost MASTER_PORT=29500 mpirun -n 2 fsdp train --config-path config.json\n";

CLI::App* add_train(CLI::App& app, TrainCommand& command) {
  CLI::App* train = app.add_subcommand("train", "Train the model that a config file describes");
  train
      ->add_option("config,--config-path", command.config_path,
                   "The config: a JSON file; --config-path may be left out")
      ->required()
      ->type_name("FILE");
  train->add_option("--set", command.overrides, "Override a key of the config; may be given several times")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  train->add_flag("--save-config", command.save_config,
                  "Write the config with all its keys to output_dir/resolved_config.json");
  train
      ->add_option("--nproc-per-node", command.nproc_per_node,
                   "Start this many ranks on this machine; without it, this "
                   "process is a rank of torchrun, mpirun or srun, or the only rank")
      ->type_name("N")
      ->check(CLI::Range(1, 4096));
  train
      ->add_option("--plan", command.plan,
                   "A plan of this run (fsdp plan --json): its memory and time are printed at the end beside those of "
                   "the run")
      ->type_name("FILE");
  train->footer(config_help());
  return train;
}

}  // namespace

Command parse_command_line(int argc, const char* const* argv) {
  TrainCommand command;
  CLI::App app(kDescription, "fsdp");
  app.set_version_flag("--version", kVersion);
  app.require_subcommand(1);
  app.footer(config_help());
  add_train(app, command);
  PlanCommand plan;
  const CLI::App* plan_app = add_plan(app, plan);
  ScheduleCommand schedule;
  const CLI::App* schedule_app = add_schedule(app, schedule);
  ConvertCommand convert;
  const CLI::App* convert_app = add_convert(app, convert);
  InspectCommand inspect;
  const CLI::App* inspect_app = add_inspect(app, inspect);
  ReportCommand report;
  const CLI::App* report_app = add_report(app, report);
  const CLI::App* doc = app.add_subcommand("config-doc", "Print the keys as Markdown tables")->group("");
  const CLI::App* clusters = app.add_subcommand("cluster-doc", "Print the keys of cluster files likewise")->group("");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const bool is_answer = error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success);
    app.exit(error, std::cout, std::cerr);
    return Finished{is_answer ? kExitSuccess : kExitUsage};
  }
  if (*doc) {
    std::cout << config_markdown();
    return Finished{kExitSuccess};
  }
  if (*clusters) {
    std::cout << planner::cluster_markdown();
    return Finished{kExitSuccess};
  }
  if (*plan_app) return plan;
  if (*schedule_app) return schedule;
  if (*convert_app) return convert;
  if (*inspect_app) return inspect;
  if (*report_app) return report;
  return command;
}

}  // namespace fsdp::trainer
