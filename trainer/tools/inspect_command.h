// `fsdp inspect`: what a model or checkpoint folder holds, and whether it is sound.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace CLI {
class App;
}

namespace fsdp::trainer {

struct InspectCommand {
  std::string folder;
  bool verify = false;
  bool json = false;
};

// Adds the subcommand, which fills `command`.
CLI::App* add_inspect(CLI::App& app, InspectCommand& command);

// Returns the exit status: not 0 when the folder cannot be read or, with `verify`, anything is wrong with it.
int run_inspect_command(const InspectCommand& command);

// For people, of what convert::describe returns.
std::string description_text(const nlohmann::json& description);

}  // namespace fsdp::trainer
