// Activation functions by their names in config.json.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace fsdp::models {

using Activation = at::Tensor (*)(const at::Tensor&);

// All names that activation_named accepts.
const std::vector<std::string>& activation_names();

// Returns the activation with this name. An unknown name is an error that lists the accepted names.
Activation activation_named(const std::string& name);

}  // namespace fsdp::models
