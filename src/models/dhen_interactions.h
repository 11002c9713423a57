// The interactions of a DHEN, by name.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>

#include "models/dhen.h"
#include "models/dhen_config.h"

namespace fsdp::models {

// name: one of dhen_interaction_names(). inputs: the number of input embeddings.
std::shared_ptr<Interaction> make_interaction(const std::string& name, const DhenConfig& config, int64_t inputs,
                                              const at::TensorOptions& options);

}  // namespace fsdp::models
