// Converts config values to the engine's options.
#pragma once

#include <c10/core/Device.h>

#include <memory>

#include "config/config.h"
#include "fsdp/communicator.h"
#include "fsdp/options.h"
#include "models/pretrained_model.h"

namespace fsdp::trainer {

// Returns the options for sharding `model`, which has parameters of master_dtype without memory, over ranks on
// `device`. Throws a ConfigError if no module of the model has a class named in wrap_classes or full_precision_classes;
// the error lists the model's classes. Collective with a hybrid strategy and a number of ranks that share one copy,
// because groups of ranks are created then; `communicator` is null to check the config only, and for the stages of a
// pipeline, whose mesh the caller adds.
Options sharding_options(const Config& config, const models::PretrainedModel& model,
                         std::shared_ptr<Communicator> communicator, c10::Device device = c10::kCPU);

}  // namespace fsdp::trainer
