// From config values to the policy of activation checkpointing.
#pragma once

#include "config/config.h"
#include "fsdp/activation_checkpoint.h"

namespace fsdp::trainer {

// An operator that cannot be kept is a ConfigError.
CheckpointPolicy checkpoint_policy(const Config& config);

}  // namespace fsdp::trainer
