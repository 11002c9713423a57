// Which architectures there are, and how their models are built.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <nlohmann/json_fwd.hpp>

#include "models/causal_lm.h"
#include "models/language_model.h"
#include "models/seq2seq_lm.h"

namespace fsdp::models {

// As make_causal_lm and make_seq2seq_lm, but parameters are left uninitialised, and no random number is drawn.
std::shared_ptr<CausalLM> make_uninitialized_causal_lm(const nlohmann::json& config, const at::TensorOptions& options);
std::shared_ptr<Seq2SeqLM> make_uninitialized_seq2seq_lm(const nlohmann::json& config,
                                                         const at::TensorOptions& options);
// Of either kind.
std::shared_ptr<LanguageModel> make_uninitialized_language_model(const nlohmann::json& config,
                                                                 const at::TensorOptions& options);

}  // namespace fsdp::models
