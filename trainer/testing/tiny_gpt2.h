// For tests: a GPT-2 without dropout, small enough to train in milliseconds, with sizes that do not divide evenly.
#pragma once

#include "testing/tiny_model.h"

namespace fsdp::trainer {

// Returns the content of a Hugging Face config.json.
nlohmann::json tiny_gpt2_config(bool tied);
// See tiny_model.h.
std::shared_ptr<models::PretrainedModel> make_tiny_gpt2(bool tied, uint64_t seed);
// Writes the model with the tensor names of older folders, which lack "transformer.".
void write_old_tiny_gpt2(const std::string& folder, bool tied, uint64_t seed);

}  // namespace fsdp::trainer
