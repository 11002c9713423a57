// For tests: models small enough to train in milliseconds.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "models/pretrained_model.h"

namespace fsdp::trainer {

constexpr int64_t kTinyVocabulary = 131;

// Makes a model with fp32 parameters on the CPU, drawn from `seed`.
std::shared_ptr<models::PretrainedModel> make_tiny_model(const nlohmann::json& config, uint64_t seed);
// Writes this model's config.json, model.safetensors and a tokenizer.json to `folder`, which is created. `stored_name`
// maps the FQN of a tensor to its name in the file.
void write_tiny_model(
    const std::string& folder, const nlohmann::json& config, uint64_t seed,
    const std::function<std::string(const std::string&)>& stored_name = [](const std::string& fqn) { return fqn; });

}  // namespace fsdp::trainer
