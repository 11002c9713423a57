// Activation functions by the names that config.json has for them.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace fsdp::models {

using Activation = at::Tensor (*)(const at::Tensor&);

// All that activation_named accepts.
const std::vector<std::string>& activation_names();

// Any other name is an error that lists these.
Activation activation_named(const std::string& name);

}  // namespace fsdp::models
