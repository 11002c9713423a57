// For tests: a Llama small enough to train in milliseconds, with sizes that divide by nothing.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "models/causal_lm.h"

namespace fsdp::trainer {

constexpr int64_t kTinyVocabulary = 131;

// As in a Hugging Face config.json.
nlohmann::json tiny_llama_config(bool tied);
// With fp32 parameters on the CPU, drawn from `seed`.
std::shared_ptr<models::CausalLM> make_tiny_llama(bool tied, uint64_t seed);
// Writes the model's config.json, model.safetensors and a tokenizer.json to `folder`, which is created.
void write_tiny_llama(const std::string& folder, bool tied, uint64_t seed);

}  // namespace fsdp::trainer
