#include "commands/inspect_command.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <set>

#include "base/counted.h"
#include "base/error_message.h"
#include "config/errors.h"
#include "convert/inspect.h"

namespace fsdp::trainer {

namespace {

using base::counted;
using nlohmann::json;

std::string tensor_line(const json& tensor) {
  std::set<std::string> files;
  for (const json& part : tensor.at("parts")) files.insert(part.at("file").get<std::string>());
  std::string line = "  " + tensor.at("name").get<std::string>() + "  " + tensor.at("dtype").get<std::string>() + " " +
                     tensor.at("shape").dump() + ", " + tensor.at("bytes").dump() + " bytes";
  if (tensor.at("parts").size() != 1) line += ", " + std::to_string(tensor.at("parts").size()) + " parts";
  for (const std::string& file : files) line += (file == *files.begin() ? " in " : ", ") + file;
  return line + "\n";
}

// Returns the value with long lists cut short: a group may list the names of 30,000 parameters.
json shortened(const json& value) {
  constexpr size_t kShown = 16;
  if (!value.is_structured()) return value;
  json all = value.is_array() ? json::array() : json::object();
  for (const auto& [key, item] : value.items()) {
    if (value.is_object()) {
      all[key] = shortened(item);
    } else if (all.size() < kShown) {
      all.push_back(shortened(item));
    }
  }
  if (all.size() < value.size()) all.push_back("and " + std::to_string(value.size() - all.size()) + " more");
  return all;
}

// Prints every key of an object on its own line.
std::string section(const json& description, const char* key, const char* title) {
  if (!description.contains(key) || description[key].is_null()) return "";
  const json& value = description[key];
  std::string text = std::string(title) + ":\n";
  if (!value.is_object() && !value.is_array()) return text + "  " + value.dump() + "\n";
  for (const auto& [name, item] : value.items()) text += "  " + name + ": " + shortened(item).dump() + "\n";
  return text;
}

// Returns the problems and their number.
std::string verdict(const std::vector<std::string>& problems) {
  std::string text;
  for (const std::string& problem : problems) text += "problem: " + problem + "\n";
  return text + (problems.empty() ? "verified: everything was read, nothing is wrong\n"
                                  : "verified: " + counted(problems.size(), "problem") + "\n");
}

}  // namespace

std::string description_text(const json& description) {
  std::string text = description.at("folder").get<std::string>() + ": " + description.at("kind").get<std::string>() +
                     ", " + counted(description.at("tensors").size(), "tensor") + ", " +
                     counted(description.at("bytes").get<int64_t>(), "byte") + ", " +
                     counted(description.at("files").size(), "file") + "\n";
  for (const json& tensor : description.at("tensors")) text += tensor_line(tensor);
  for (const json& file : description.at("files")) {
    text += "file " + file.at("name").get<std::string>() + ": " + file.at("bytes").dump() + " bytes\n";
  }
  return text + section(description, "groups", "parameter groups") + section(description, "user", "user") +
         section(description, "values", "values");
}

CLI::App* add_inspect(CLI::App& app, InspectCommand& command) {
  CLI::App* inspect = app.add_subcommand("inspect", "Print what a model or checkpoint folder holds");
  inspect->footer("");  // without the config's keys
  inspect->add_option("folder", command.folder, "The folder; its kind is detected from its files")->required();
  inspect->add_flag("--verify", command.verify, "Read and check everything; exit status 1 when anything is wrong");
  inspect->add_flag("--json", command.json, "Print one JSON object");
  return inspect;
}

int run_inspect_command(const InspectCommand& command) {
  try {
    auto [description, problems] =
        command.verify ? convert::inspect(command.folder) : convert::Inspection{convert::describe(command.folder), {}};
    if (command.json) {
      if (command.verify) description["problems"] = problems;
      std::printf("%s\n", description.dump().c_str());
    } else {
      std::fputs((description_text(description) + (command.verify ? verdict(problems) : "")).c_str(), stdout);
    }
    return problems.empty() ? kExitSuccess : kExitFailure;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "fsdp inspect: %s\n", base::message_of(error).c_str());
  }
  return kExitFailure;
}

}  // namespace fsdp::trainer
