#include "commands/convert_command.h"

#include <c10/util/Exception.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <utility>

#include "base/counted.h"
#include "base/error_message.h"
#include "config/byte_count.h"
#include "config/errors.h"
#include "convert/convert.h"

namespace fsdp::trainer {

namespace {

using convert::FolderKind;

constexpr std::pair<const char*, FolderKind> kFolderKinds[] = {
    {"hf", FolderKind::kHuggingFace}, {"dcp", FolderKind::kDcp}, {"fsdp", FolderKind::kTraining}};

FolderKind target_kind(const ConvertCommand& command) {
  for (const auto& [name, kind] : kFolderKinds) {
    if (command.to == name) return kind;
  }
  return convert::kind_of(command.source) == FolderKind::kHuggingFace ? FolderKind::kTraining
                                                                      : FolderKind::kHuggingFace;
}

convert::ConvertOptions options_of(const ConvertCommand& command, FolderKind kind) {
  convert::ConvertOptions options;
  options.max_file_bytes = *parse_byte_count(command.max_shard_size);
  const std::filesystem::path config = command.config;
  options.config = std::filesystem::is_directory(config) ? config / "config.json" : config;
  options.flatten_optimizer = command.flatten_optimizer;
  options.replace = command.force;
  options.source.buffers = command.buffers;
  options.source.optimizer_prefix = command.optimizer_prefix;
  const bool from_dcp = convert::kind_of(command.source) == FolderKind::kDcp;
  (from_dcp ? options.source.model_prefix : options.target_model_prefix) = command.model_prefix;
  TORCH_CHECK(!command.model_prefix || from_dcp || kind == FolderKind::kDcp,
              "--model-prefix needs a torch.distributed.checkpoint folder, but neither folder is of this kind");
  TORCH_CHECK(!command.optimizer_prefix || from_dcp,
              "--optimizer-prefix needs a torch.distributed.checkpoint folder as source, "
              "but ",
              command.source, " is not one");
  TORCH_CHECK(!command.flatten_optimizer || kind == FolderKind::kDcp,
              "--flatten-optimizer needs a torch.distributed.checkpoint folder as target (--to dcp)");
  TORCH_CHECK(command.config.empty() || kind == FolderKind::kHuggingFace,
              "--config needs a Hugging Face folder as target (--to hf)");
  return options;
}

}  // namespace

CLI::App* add_convert(CLI::App& app, ConvertCommand& command) {
  CLI::App* convert = app.add_subcommand(
      "convert", "Convert between Hugging Face folders, training checkpoints and torch.distributed.checkpoint folders");
  convert->footer("");  // without the config's keys
  convert->add_option("source", command.source, "The folder to read; its kind is detected from its files")->required();
  convert->add_option("target", command.target, "The folder to write")->required();
  convert->add_option("--to", command.to, "The target's kind; default: fsdp if the source is of kind hf, else hf")
      ->check(CLI::IsMember({"hf", "dcp", "fsdp"}));
  convert->add_option("--max-shard-size", command.max_shard_size, "Largest size of a file; more is split over several")
      ->capture_default_str()
      ->type_name("BYTES")
      ->check([](const std::string& text) {
        return parse_byte_count(text) ? "" : "is \"" + text + "\", must be " + kByteCounts;
      });
  convert
      ->add_option("--config", command.config,
                   "config.json for --to hf, or a folder with one; default: that of the source folder")
      ->type_name("PATH");
  convert->add_option(
      "--model-prefix", command.model_prefix,
      "Prefix of the model's names in torch.distributed.checkpoint, in the source or else in the target");
  convert->add_option("--optimizer-prefix", command.optimizer_prefix,
                      "Prefix of the optimizer's names in torch.distributed.checkpoint, in the source");
  convert->add_option("--buffer", command.buffers, "Pattern for the names of buffers, for --to fsdp; may be repeated")
      ->type_name("PATTERN")
      ->allow_extra_args(false);
  convert->add_flag("--flatten-optimizer", command.flatten_optimizer,
                    "For --to dcp: parameter groups by parameter, as flatten_optimizer_state_dict lays them out");
  convert->add_flag("--force", command.force, "Replace an existing target of the same kind");
  return convert;
}

int run_convert_command(const ConvertCommand& command) {
  try {
    const FolderKind kind = target_kind(command);
    const convert::Converted done = convert::convert(command.source, command.target, kind, options_of(command, kind));
    std::printf("%s: %s, %s, %s\n", command.target.c_str(), convert::kind_name(kind),
                base::counted(static_cast<int64_t>(done.tensors), "tensor").c_str(),
                base::counted(done.bytes, "byte").c_str());
    for (const std::string& note : done.notes) std::printf("  %s\n", note.c_str());
    return kExitSuccess;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "fsdp convert: %s\n", base::message_of(error).c_str());
  }
  return kExitFailure;
}

}  // namespace fsdp::trainer
