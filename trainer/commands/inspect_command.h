// `fsdp inspect`: prints the content of a model or checkpoint folder and checks whether it is sound.
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

// Runs the command and returns the exit status, which is not 0 if the folder cannot be read or, with `verify`, if
// anything is wrong with it.
int run_inspect_command(const InspectCommand& command);

// Formats the result of convert::describe for people; lists of more than 16 values are cut short.
std::string description_text(const nlohmann::json& description);

}  // namespace fsdp::trainer
