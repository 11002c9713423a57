#include "commands/plan_command.h"

#include <c10/util/StringUtil.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error_message.h"
#include "commands/command_error.h"
#include "commands/plan_search.h"
#include "config/byte_count.h"
#include "config/config_reader.h"
#include "config/errors.h"
#include "formats/common/json_text.h"
#include "planner/advice/single_changes.h"
#include "planner/memory/forecast.h"
#include "planner/report/plan_text.h"
#include "planner/run/plan.h"

namespace fsdp::trainer {

namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

// The keys that --model stands for.
nlohmann::json keys_of_model(const std::string& model) {
  std::error_code failure;
  if (fs::is_directory(model, failure)) return {{"model_path", model}};
  if (!fs::is_regular_file(model, failure)) return {{"model", model}};
  try {
    return {{"model", formats::read_json_file(model)}};
  } catch (const c10::Error& error) {
    throw ConfigError("--model: " + base::message_of(error));
  }
}

Config config_of(const PlanCommand& command, const std::vector<std::string>& more = {}) {
  std::vector<std::string> overrides = command.overrides;
  overrides.insert(overrides.end(), more.begin(), more.end());
  if (command.model.empty()) return read_config(command.config_path, overrides);
  return read_config(keys_of_model(command.model), "--model " + command.model, overrides);
}

planner::PlanOptions options_of(const PlanCommand& command) {
  planner::PlanOptions options;
  options.cluster = planner::parse_cluster(command.cluster);
  options.rank = command.rank;
  if (command.host_memory) {
    options.host_memory = parse_byte_count(*command.host_memory);
    if (!options.host_memory) {
      throw ConfigError(c10::str("--host-memory ", *command.host_memory, ": must be ", kByteCounts));
    }
  }
  return options;
}

int status_for(const std::string& verdict) {
  if (verdict == planner::to_string(planner::Verdict::kTight)) return kExitTight;
  if (verdict == planner::to_string(planner::Verdict::kDoesNotFit)) return kExitDoesNotFit;
  return kExitSuccess;
}

int plan(const PlanCommand& command) {
  const planner::PlanOptions options = options_of(command);
  if (command.search) {
    return run_plan_search(command, options,
                           [&](const std::vector<std::string>& more) { return config_of(command, more); });
  }
  const Config config = config_of(command);
  planner::PlanOptions traced = options;
  traced.trace = command.trace;
  ordered_json document = planner::make_plan(config, traced);
  const int status = status_for(document["memory"]["verdict"]);
  if (status != kExitSuccess && !command.no_changes) {
    document["changes"] = planner::planned_changes(config, document, [&](const std::vector<std::string>& overrides) {
      return planner::make_plan(config_of(command, overrides), options);
    });
  }
  if (command.json) {
    std::printf("%s\n", document.dump(2).c_str());
  } else {
    std::fputs(planner::plan_text(document).c_str(), stdout);
  }
  return status;
}

CLI::Option* add_search(CLI::App& plan, PlanCommand& command) {
  CLI::Option* search =
      plan.add_flag("--search", command.search,
                    "Plan many configs, and show those that fit and are fastest or need the least memory; keys of "
                    "--set keep their values");
  plan.add_flag("--free-batch", command.free_batch,
                "With --search: the samples of a step may change; otherwise they do only if neither train_batch_size "
                "nor gradient_accumulation_steps is given")
      ->needs(search);
  plan.add_option("--search-limit", command.search_limit, "With --search: plan at most this many configs")
      ->type_name("N")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str()
      ->needs(search);
  plan.add_option("--jobs", command.jobs, "With --search: plan this many at a time; by default one a processor")
      ->type_name("N")
      ->check(CLI::Range(1, 1024))
      ->needs(search);
  return search;
}

}  // namespace

CLI::App* add_plan(CLI::App& app, PlanCommand& command) {
  CLI::App* plan = app.add_subcommand("plan", "Say whether a run fits its machine, without the machine");
  plan->footer(
      "Exit status: 0 fits, 3 tight, 4 does not fit, 2 wrong command line or config, 1 the plan failed.\n"
      "The keys of --set are those of fsdp train (fsdp train --help).\n");
  auto* source = plan->add_option_group("run")->require_option(1);
  source->add_option("--config-path", command.config_path, "The config of the run: a JSON file")->type_name("FILE");
  source
      ->add_option("--model", command.model,
                   "A model with the default settings: a preset, a folder with a config.json, or such a file")
      ->type_name("MODEL");
  plan->add_option("--set", command.overrides, "Override a key of the config; may be given several times")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  plan->add_option("--cluster", command.cluster, "The machine: 8xh100, 64x8xa100-80 (hosts, ranks of each), 4xcpu")
      ->required()
      ->type_name("CLUSTER");
  plan->add_option("--rank", command.rank, "The rank to plan")->type_name("N");
  plan->add_option("--host-memory", command.host_memory,
                   "Memory of one host, such as 512GiB; without it, no verdict about hosts")
      ->type_name("BYTES");
  CLI::Option* trace =
      plan->add_option("--trace", command.trace, "Write the planned steps as a trace, which ui.perfetto.dev opens")
          ->type_name("FILE");
  plan->add_flag("--json", command.json, "Print one JSON object");
  CLI::Option* no_changes =
      plan->add_flag("--no-changes", command.no_changes, "Do not look for changes that make it fit");
  add_search(*plan, command)->excludes(no_changes)->excludes(trace);
  return plan;
}

int run_plan_command(const PlanCommand& command) {
  try {
    return plan(command);
  } catch (const std::exception& error) {
    return report_error(error);
  }
}

}  // namespace fsdp::trainer
