// For tests: a Llama small enough to train in milliseconds, with sizes that do not divide evenly.
#pragma once

#include "testing/tiny_model.h"

namespace fsdp::trainer {

// Returns the content of a Hugging Face config.json.
nlohmann::json tiny_llama_config(bool tied);
// See tiny_model.h.
std::shared_ptr<models::PretrainedModel> make_tiny_llama(bool tied, uint64_t seed);
void write_tiny_llama(const std::string& folder, bool tied, uint64_t seed);

}  // namespace fsdp::trainer
