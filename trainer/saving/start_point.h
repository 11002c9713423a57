// Where a run begins: with the pretrained model, or with a checkpoint.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "config/config.h"
#include "fsdp/communicator.h"

namespace fsdp::trainer {

struct StartPoint {
  std::optional<std::filesystem::path> checkpoint;  // none: the pretrained model
  std::string text;                                 // what is to be said of it; may be empty
};

// What "resume_from_checkpoint" means with what is in output_dir now. A ConfigError: a path that is no checkpoint; a
// run with "save_steps" that would mix its checkpoints with those of another one, which are there already, of later
// steps than the one that it begins with.
StartPoint choose_start(const Config& config);

// What rank 0 finds, on all ranks; errors too. Collective.
StartPoint agree_on_start(const Config& config, Communicator& communicator);

}  // namespace fsdp::trainer
