#include "commands/plan_command.h"

#include <c10/util/StringUtil.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error_message.h"
#include "commands/command_error.h"
#include "commands/plan_calibrate.h"
#include "commands/plan_paper.h"
#include "commands/plan_search.h"
#include "config/byte_count.h"
#include "config/config_reader.h"
#include "config/errors.h"
#include "config/parallel_degrees.h"
#include "formats/common/json_text.h"
#include "formats/common/output_file.h"
#include "planner/advice/single_changes.h"
#include "planner/memory/forecast.h"
#include "planner/report/plan_page.h"
#include "planner/report/plan_text.h"
#include "planner/report/pretty_json.h"
#include "planner/report/progress_line.h"
#include "planner/run/plan.h"
#include "planner/target/cluster_file.h"
#include "report_page/page_file.h"
#include "report_page/step_timeline.h"

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

Config config_with(const PlanCommand& command, const std::vector<std::string>& overrides) {
  if (command.model.empty()) return read_config(command.config_path, overrides);
  return read_config(keys_of_model(command.model), "--model " + command.model, overrides);
}

// Says with sharding_factor, which changes of a plan set, what other keys say about the ranks that share a copy.
std::vector<std::string> as_sharding_factor(const Config& config, int64_t ranks) {
  if (!config.parallelism.shard_degree && !config.parallelism.replicate_degree) return {};
  return {c10::str("sharding_factor=", *parallel_degrees(config, ranks).shard_group), "data_parallel_shard_degree=null",
          "data_parallel_replicate_degree=null"};
}

Config config_of(const PlanCommand& command, int64_t ranks, const std::vector<std::string>& more = {}) {
  std::vector<std::string> overrides = command.overrides;
  for (const auto& further : {as_sharding_factor(config_with(command, overrides), ranks), more}) {
    overrides.insert(overrides.end(), further.begin(), further.end());
  }
  return config_with(command, overrides);
}

planner::PlanOptions options_of(const PlanCommand& command) {
  planner::PlanOptions options;
  options.cluster = planner::read_cluster(command.cluster);
  options.stack = planner::read_stack(command.stack);
  options.rank = command.rank;
  options.document_tokens = command.document_tokens;
  options.host_memory = options.cluster.host_memory;
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

int print_cluster(const std::string& name) {
  std::fputs(planner::pretty_json(planner::cluster_json(planner::read_cluster(name))).c_str(), stdout);
  return kExitSuccess;
}

// Plans the run, and changes if it does not fit. Says on a terminal how far it is. The timeline of the run is written
// to options.trace.
ordered_json planned_with_changes(const PlanCommand& command, planner::PlanOptions options) {
  planner::ProgressLine line;
  options.progress = [&](const std::string& part) { line.show("planning: " + part); };
  const int64_t ranks = options.cluster.ranks();
  const Config config = config_of(command, ranks);
  ordered_json document = planner::make_plan(config, options);
  if (status_for(document["memory"]["verdict"]) == kExitSuccess || command.no_changes) return document;
  options.trace.clear();
  const size_t single_changes = planner::changes_for(config).size();
  size_t change = 0;
  const auto plan_change = [&](const std::vector<std::string>& overrides) {
    const bool single = ++change <= single_changes;
    const std::string what =
        c10::str("planning ", single ? c10::str("change ", change, " of ", single_changes) : "several", ", --set ",
                 c10::Join(" --set ", overrides), ": ");
    options.progress = [&, what](const std::string& part) { line.show(what + part); };
    return planner::make_plan(config_of(command, ranks, overrides), options);
  };
  document["changes"] = planner::planned_changes(config, document, plan_change);
  return document;
}

// A file that is removed with this object.
struct PassingFile {
  explicit PassingFile(fs::path file) : path(std::move(file)) {}
  ~PassingFile() {
    std::error_code failure;
    fs::remove(path, failure);
  }
  PassingFile(const PassingFile&) = delete;
  PassingFile& operator=(const PassingFile&) = delete;
  const fs::path path;
};

// Writes the page, too. Its timeline comes from the trace; plans without times have none.
ordered_json plan_with_page(const PlanCommand& command, planner::PlanOptions options) {
  check_folder_of_page(command.html, "--html");
  const PassingFile passing(formats::temporary_sibling(command.html));
  if (options.trace.empty() && options.cluster.has_times()) options.trace = passing.path.string();
  ordered_json document = planned_with_changes(command, options);
  std::optional<StepTimeline> timeline;
  if (!options.trace.empty()) timeline = read_step_timeline(options.trace);
  formats::write_file(command.html, planner::plan_page(document, timeline));
  return document;
}

int plan(const PlanCommand& command) {
  planner::PlanOptions options = options_of(command);
  if (command.search) {
    return run_plan_search(command, options, [&](const std::vector<std::string>& more) {
      return config_of(command, options.cluster.ranks(), more);
    });
  }
  options.trace = command.trace;
  const ordered_json document =
      command.html.empty() ? planned_with_changes(command, options) : plan_with_page(command, options);
  if (command.json) {
    std::fputs(planner::pretty_json(document).c_str(), stdout);
  } else {
    std::fputs(planner::plan_text(document).c_str(), stdout);
  }
  return status_for(document["memory"]["verdict"]);
}

// --print-cluster, --paper and --calibrate need neither a run nor a cluster.
void check_complete(const PlanCommand& command) {
  if (!command.print_cluster.empty() || command.paper || !command.calibrate.empty()) return;
  if (command.jobs > 0 && !command.search) throw CLI::RequiresError("--jobs", "--search");
  if (command.model.empty() && command.config_path.empty()) throw CLI::RequiredError("--config-path or --model");
  if (command.cluster.empty()) throw CLI::RequiredError("--cluster");
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
  return search;
}

// Excludes the options of a run from one that does something else.
void exclude_run(CLI::App& plan, CLI::Option& other) {
  for (const char* option : {"--config-path", "--model", "--set", "--cluster", "--print-cluster", "--rank",
                             "--document-tokens", "--host-memory", "--stack", "--trace", "--no-changes", "--search"}) {
    other.excludes(plan.get_option(option));
  }
}

// Plans the paper's runs instead of one that the command line describes.
CLI::Option* add_paper(CLI::App& plan, PlanCommand& command) {
  CLI::Option* paper = plan.add_flag(
      "--paper", command.paper,
      "Plan the figures of the FSDP paper, and compare them with its text; takes a minute, and no other run");
  exclude_run(plan, *paper);
  return paper;
}

void add_calibration(CLI::App& plan, PlanCommand& command) {
  CLI::Option* calibrate =
      plan.add_option("--calibrate", command.calibrate,
                      "Measure for about a minute how fast the CPUs of this host are while --nproc-per-node ranks "
                      "train, and write a file for --cluster; plans nothing")
          ->type_name("FILE");
  exclude_run(plan, *calibrate);
  for (const char* option : {"--paper", "--html", "--json", "--jobs"}) calibrate->excludes(plan.get_option(option));
  CLI::Option* ranks = plan.add_option("--nproc-per-node", command.nproc_per_node, "With --calibrate: the ranks")
                           ->type_name("N")
                           ->check(CLI::Range(1, 1024))
                           ->needs(calibrate);
  calibrate->needs(ranks);
}

void add_jobs(CLI::App& plan, PlanCommand& command) {
  plan.add_option("--jobs", command.jobs,
                  "With --search and --paper: plan this many at a time; by default one a processor")
      ->type_name("N")
      ->check(CLI::Range(1, 1024));
}

}  // namespace

CLI::App* add_plan(CLI::App& app, PlanCommand& command) {
  CLI::App* plan = app.add_subcommand("plan", "Say whether a run fits its machine, without the machine");
  plan->footer(
      "Exit status: 0 fits, 3 tight, 4 does not fit, 2 wrong command line or config, 1 the plan failed.\n"
      "The keys of --set are those of fsdp train (fsdp train --help).\n");
  auto* source = plan->add_option_group("run")->require_option(0, 1);
  source
      ->add_option("config,--config-path", command.config_path,
                   "The config of the run: a JSON file; --config-path may be left out")
      ->type_name("FILE");
  source
      ->add_option("--model", command.model,
                   "A model with the default settings: a preset, a folder with a config.json, or such a file")
      ->type_name("MODEL");
  plan->add_option("--set", command.overrides, "Override a key of the config; may be given several times")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  plan->add_option("--cluster", command.cluster,
                   "The machine: 8xh100, 64x8xa100-80 (hosts, ranks of each), 4xcpu, or a file (docs/cluster.md)")
      ->type_name("CLUSTER");
  plan->add_option("--stack", command.stack,
                   "The software that runs the step, for its times: ours, fsdp1, fsdp2, compiled, compiled-fp8, "
                   "llm-foundry, or a file (docs/planning.md)")
      ->type_name("STACK")
      ->capture_default_str();
  plan->add_option("--print-cluster", command.print_cluster,
                   "Print all numbers of a cluster as a file for --cluster, and plan nothing")
      ->type_name("CLUSTER");
  plan->callback([&command] { check_complete(command); });
  plan->add_option("--rank", command.rank,
                   "The rank to plan; by default 0, or of a pipeline the one that needs most memory")
      ->type_name("N");
  plan->add_option("--document-tokens", command.document_tokens,
                   "With attn_mask_type block_causal: the tokens of each document, into which samples are divided")
      ->type_name("N")
      ->check(CLI::Range(1, 1 << 30));
  plan->add_option("--host-memory", command.host_memory,
                   "Memory of one host, such as 512GiB; without it, no verdict about hosts")
      ->type_name("BYTES");
  CLI::Option* html =
      plan->add_option("--html", command.html, "Also write a page with figures and plots")->type_name("FILE");
  CLI::Option* trace =
      plan->add_option("--trace", command.trace, "Write the planned steps as a trace, which ui.perfetto.dev opens")
          ->type_name("FILE");
  plan->add_flag("--json", command.json, "Print one JSON object");
  CLI::Option* no_changes =
      plan->add_flag("--no-changes", command.no_changes, "Do not look for changes that make it fit");
  add_search(*plan, command)->excludes(no_changes)->excludes(trace)->excludes(html);
  add_paper(*plan, command);
  add_jobs(*plan, command);
  add_calibration(*plan, command);
  return plan;
}

int run_plan_command(const PlanCommand& command) {
  try {
    if (command.paper) return run_paper_plans(command);
    if (!command.calibrate.empty()) return run_calibration(command);
    return command.print_cluster.empty() ? plan(command) : print_cluster(command.print_cluster);
  } catch (const std::exception& error) {
    return report_error(error);
  }
}

}  // namespace fsdp::trainer
