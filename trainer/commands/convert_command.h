// `fsdp convert`: converts a model or checkpoint folder to another kind.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace fsdp::trainer {

struct ConvertCommand {
  std::string source, target;
  std::string to;  // "hf", "dcp" or "fsdp"; empty: hf, or fsdp for a Hugging Face source
  std::string max_shard_size = "5GB";
  std::string config;
  std::optional<std::string> model_prefix, optimizer_prefix;
  std::vector<std::string> buffers;
  bool flatten_optimizer = false;
  bool force = false;
};

// Adds the subcommand, which fills `command`.
CLI::App* add_convert(CLI::App& app, ConvertCommand& command);

// Runs the command and returns the exit status. Prints what was written and what was left out, and errors to stderr.
int run_convert_command(const ConvertCommand& command);

}  // namespace fsdp::trainer
