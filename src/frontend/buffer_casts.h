// Buffers of sharded modules in low precision.
#pragma once

#include <torch/nn/module.h>

#include "engine/engine.h"
#include "frontend/module_parameters.h"

namespace fsdp {

// Casts floating-point buffers of `root` and below to `dtype`, but for those at or below `except` (paths of modules),
// and tells the engine.
void cast_buffers(torch::nn::Module& root, at::ScalarType dtype, const PathSet& except, Engine& engine);

}  // namespace fsdp
