// From config values to the engine's options.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <memory>
#include <string>

#include "config/config.h"
#include "fsdp/communicator.h"
#include "fsdp/options.h"
#include "models/pretrained_model.h"

namespace fsdp::trainer {

// "fp32", "bf16", "fp16".
c10::ScalarType scalar_type(const std::string& dtype);

// How `model`, without memory and with parameters of master_dtype, is to be sharded, for ranks on `device`. A name
// in wrap_classes or full_precision_classes that no module of the model has is a ConfigError that lists those it has.
// Collective with a hybrid strategy and a sharding_factor, which make groups of ranks; `communicator` may be null to
// check only.
Options sharding_options(const Config& config, const models::PretrainedModel& model,
                         std::shared_ptr<Communicator> communicator, c10::Device device = c10::kCPU);

}  // namespace fsdp::trainer
