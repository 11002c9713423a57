// The start of a run: the pretrained model or a checkpoint.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "config/config.h"
#include "fsdp/communicator.h"
#include "fsdp/errors.h"

namespace fsdp::trainer {

struct StartPoint {
  std::optional<std::filesystem::path> checkpoint = std::nullopt;  // none: the pretrained model
  std::vector<std::string> texts = {};                             // messages for the user
  // Damaged checkpoints in output_dir that are newer than `checkpoint` and must be set aside.
  std::vector<std::filesystem::path> damaged = {};
  // Checkpoints of an earlier run that must be removed, because the config says so.
  std::vector<std::filesystem::path> overwritten = {};
};

// Resolves "resume_from_checkpoint" against the current content of output_dir. Throws a ConfigError if the path is not
// a checkpoint or a damaged one, if `latest` finds only damaged checkpoints, or if the run would replace the results of
// another run in output_dir, or mix its own with them, unless the config has "overwrite_output_dir". Changes nothing.
StartPoint choose_start(const Config& config);

// Runs choose_start on rank 0 and returns the result, or throws its error, on all ranks. Rank 0 sets damaged
// checkpoints aside and removes the checkpoints to be overwritten, so this run must have the folder for itself.
// Collective.
StartPoint agree_on_start(const Config& config, Communicator& communicator);

// Handles `error`, which all ranks got while they read `checkpoint`. With `latest`, if the checkpoint turns out to be
// damaged, returns the newest sound one instead. Otherwise throws `error`, with the newest sound checkpoint as advice.
// Collective.
StartPoint agree_on_start_instead(const Config& config, Communicator& communicator,
                                  const std::filesystem::path& checkpoint, const StepFailed& error);

}  // namespace fsdp::trainer
