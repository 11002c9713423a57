// Where a run begins: with the pretrained model, or with a checkpoint.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "config/config.h"
#include "fsdp/communicator.h"
#include "state/together.h"

namespace fsdp::trainer {

struct StartPoint {
  std::optional<std::filesystem::path> checkpoint = std::nullopt;  // none: the pretrained model
  std::vector<std::string> texts = {};                             // to be said of it
  // Checkpoints in output_dir that are damaged, and newer than this one: to be set aside.
  std::vector<std::filesystem::path> damaged = {};
  // Those of an earlier run that are to be removed, as the config says.
  std::vector<std::filesystem::path> overwritten = {};
};

// What "resume_from_checkpoint" means with what is in output_dir now. A ConfigError: a path that is no checkpoint, or a
// damaged one; `latest` where all are damaged; a run that would replace, or mix with its own, what another one has left
// in output_dir, unless the config has "overwrite_output_dir". Changes nothing.
StartPoint choose_start(const Config& config);

// What rank 0 finds, on all ranks; errors too. Rank 0 sets damaged checkpoints aside and removes those that are to be
// overwritten: this run must have the folder for itself. Collective.
StartPoint agree_on_start(const Config& config, Communicator& communicator);

// After `error`, which all ranks got while they read `checkpoint`: with `latest`, if that turns out to be damaged, the
// newest sound one instead. Otherwise throws `error`, with the newest sound one as advice. Collective.
StartPoint agree_on_start_instead(const Config& config, Communicator& communicator,
                                  const std::filesystem::path& checkpoint, const StepFailed& error);

}  // namespace fsdp::trainer
