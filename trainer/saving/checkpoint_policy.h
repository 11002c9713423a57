// Converts config values to the policy of activation checkpointing.
#pragma once

#include "config/config.h"
#include "fsdp/activation_checkpoint.h"

namespace fsdp::trainer {

// Throws a ConfigError for an operator whose result cannot be kept.
CheckpointPolicy checkpoint_policy(const ModelConfig& config);

}  // namespace fsdp::trainer
