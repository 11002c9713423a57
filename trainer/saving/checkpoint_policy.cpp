#include "saving/checkpoint_policy.h"

#include <c10/util/Exception.h>

#include "config/errors.h"

namespace fsdp::trainer {

CheckpointPolicy checkpoint_policy(const ModelConfig& config) {
  if (!config.activation_checkpointing) return {};
  CheckpointOptions options;
  try {
    options.save_ops = config.activation_checkpointing_save_ops;
  } catch (const c10::ValueError& error) {
    throw ConfigError(std::string("key \"activation_checkpointing_save_ops\": ") + error.what_without_backtrace());
  }
  return CheckpointPolicy::every(config.activation_checkpointing_every, options);
}

}  // namespace fsdp::trainer
