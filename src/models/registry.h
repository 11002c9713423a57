// Which architectures there are, and how their models are built.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "models/causal_lm.h"
#include "models/image_classifier.h"
#include "models/pretrained_model.h"
#include "models/seq2seq_lm.h"
#include "models/tabular_model.h"

namespace fsdp::models {

// As make_causal_lm, make_seq2seq_lm and make_image_classifier, but parameters and buffers are left uninitialised, and
// no random number is drawn. Model: CausalLM, Seq2SeqLM, ImageClassifier, TabularModel, or PretrainedModel for any of
// them. A tabular model has no embedding yet (TabularModel::set_embedding).
template <typename Model>
std::shared_ptr<Model> make_uninitialized(const nlohmann::json& config, const at::TensorOptions& options);

// config.json of the same model, whose "architectures" is the class that this library has for it: a folder may name the
// model without its head, which the one that is written has.
nlohmann::json with_class_of_model(nlohmann::json config);

}  // namespace fsdp::models
