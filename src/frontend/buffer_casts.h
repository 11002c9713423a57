// Casts buffers of sharded modules to low precision.
#pragma once

#include <torch/nn/module.h>

#include "engine/engine.h"
#include "frontend/module_parameters.h"

namespace fsdp::frontend {

// Casts floating-point buffers of `root` and its descendants to `dtype`, except those of modules at or below `except`
// (paths of modules), and tells the engine.
void cast_buffers(torch::nn::Module& root, at::ScalarType dtype, const PathSet& except, engine::Engine& engine);

}  // namespace fsdp::frontend
