// For tests: models with small, odd sizes, and configs that train them.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "config/config.h"

namespace fsdp::planner {

// "gpt2", "t5", "regnet", "deepvit", "llama", and the families of decoders whose operators differ most from Llama's:
// "gemma2" (windows, soft caps, four norms), "olmo3" (windows without soft caps, norms of whole projections), "phi3"
// (fused projections) and "qwen3" (norms of heads).
std::vector<std::string> small_model_names();

// Returns the JSON of a config that trains this model on dummy data, with the keys in `more` set.
nlohmann::json small_config(const std::string& model, const nlohmann::json& more);

trainer::Config read_json(const nlohmann::json& json);

}  // namespace fsdp::planner
