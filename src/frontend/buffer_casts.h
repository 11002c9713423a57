// Buffers of sharded modules in low precision.
#pragma once

#include <torch/nn/module.h>

#include <string>
#include <vector>

#include "engine/engine.h"

namespace fsdp {

// Casts floating-point buffers of `root` and below to `dtype`, but for those at or below `except` (paths of modules),
// and tells the engine.
void cast_buffers(torch::nn::Module& root, at::ScalarType dtype, const std::vector<std::string>& except,
                  Engine& engine);

}  // namespace fsdp
