// Which architectures there are, and how their models are built.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <nlohmann/json_fwd.hpp>

#include "models/causal_lm.h"

namespace fsdp::models {

// As make_causal_lm, but parameters are left uninitialised, and no random number is drawn.
std::shared_ptr<CausalLM> make_uninitialized_causal_lm(const nlohmann::json& config, const at::TensorOptions& options);

}  // namespace fsdp::models
