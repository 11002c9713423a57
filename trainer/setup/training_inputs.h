// The inputs of a run: the model and the data, opened and checked.
#pragma once

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "config/config.h"
#include "data/dataset.h"
#include "models/pretrained.h"
#include "setup/pipeline_layout.h"
#include "tasks/trained_model.h"

namespace fsdp::trainer {

struct TrainingInputs {
  nlohmann::json model_config;                       // the content of config.json
  std::optional<models::PretrainedWeights> weights;  // unset: the model has recorded how to initialize its weights
  // Has parameters of master_dtype without memory: on the meta device or, without weights, with deferred
  // initialization.
  std::unique_ptr<TrainedModel> model;
  // Of a pipeline. Where ranks have several stages, the others are cut from further copies of the model.
  std::optional<PipelineLayout> pipeline = std::nullopt;
  std::vector<std::unique_ptr<TrainedModel>> more_models = {};
  std::unique_ptr<Dataset> train;
  std::unique_ptr<Dataset> eval;  // null without do_eval
};

// Returns the folder to which save_final writes the model.
std::filesystem::path final_folder(const OutputConfig& output);

// Opens the model and data that `config` names and checks that they fit together: the weights match the model, the
// model accepts the data, the training data holds a global batch for `world_size` ranks, classes to wrap exist, the
// model can be cut into the stages of a pipeline. Does
// not communicate, so every mistake is found before ranks wait for one another. Reads headers of weights, a few token
// ids, all classes of images and all tabular data. With the key `model`, seeds the default generators with `seed`; no
// weights are drawn yet.
TrainingInputs open_training_inputs(const Config& config, int64_t world_size);

}  // namespace fsdp::trainer
