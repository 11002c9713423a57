// `fsdp plan`: says before launch whether a run fits its machine, where its memory goes, and how long a step takes.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace fsdp::trainer {

struct PlanCommand {
  std::string config_path;             // one of the two is given
  std::string model;                   // a preset, a folder with a config.json, or such a file
  std::vector<std::string> overrides;  // KEY=VALUE
  std::string cluster;
  std::string stack = "ours";
  std::optional<int> rank = std::nullopt;
  std::optional<std::string> host_memory;  // read by parse_byte_count
  int64_t document_tokens = 0;
  std::string print_cluster;  // not empty: print this cluster as a file, and plan nothing
  std::string calibrate;      // not empty: measure this host, write this file, and plan nothing
  int nproc_per_node = 0;     // with calibrate: ranks
  std::string html;           // the page to write; empty: none
  std::string trace;          // empty: none is written
  bool json = false;
  bool no_changes = false;
  bool search = false;
  bool paper = false;       // plan the figures of the FSDP paper instead of a run
  bool free_batch = false;  // the search may change the samples of a step
  int search_limit = 600;   // plans
  int jobs = 0;             // plans at a time; 0: as many as there are processors
};

// Exit statuses beside those of errors.h, so that scripts can ask.
inline constexpr int kExitTight = 3;
inline constexpr int kExitDoesNotFit = 4;

// Adds the subcommand, which fills `command`.
CLI::App* add_plan(CLI::App& app, PlanCommand& command);

// Runs the command and returns the exit status: kExitSuccess if the run fits or if no capacity is known, kExitTight,
// kExitDoesNotFit, or that of an error. Must be called before this process starts threads.
int run_plan_command(const PlanCommand& command);

}  // namespace fsdp::trainer
