// The registry of architectures, which builds their models.
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

// As make_causal_lm, make_seq2seq_lm and make_image_classifier, but leaves parameters and buffers uninitialised and
// draws no random numbers. Model: CausalLM, Seq2SeqLM, ImageClassifier, TabularModel, or PretrainedModel for any of
// them. A tabular model has no embedding yet (TabularModel::set_embedding).
template <typename Model>
std::shared_ptr<Model> make_uninitialized(const nlohmann::json& config, const at::TensorOptions& options);

// Returns the config.json of the same model with this library's class as its "architectures": a folder may name the
// model without its head, but the model that is written has a head. Of a model that also takes images it is that of the
// text model, the part that is made and written.
nlohmann::json with_class_of_model(nlohmann::json config);

}  // namespace fsdp::models
