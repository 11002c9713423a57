// For tests: the models of the presets with small, odd sizes, and configs that train them.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "config/config.h"

namespace fsdp::planner {

// "gpt2", "llama", "t5", "regnet", "deepvit".
std::vector<std::string> small_model_names();

// Returns the JSON of a config that trains this model on dummy data, with the keys in `more` set.
nlohmann::json small_config(const std::string& model, const nlohmann::json& more);

trainer::Config read_json(const nlohmann::json& json);

}  // namespace fsdp::planner
