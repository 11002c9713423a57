// What a run starts from: the model and the data, opened and checked.
#pragma once

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "config/config.h"
#include "data/dataset.h"
#include "models/pretrained.h"
#include "training/trained_model.h"

namespace fsdp::trainer {

struct TrainingInputs {
  nlohmann::json model_config;                       // as in config.json
  std::optional<models::PretrainedWeights> weights;  // nothing: the model has recorded how its weights are drawn
  // With parameters of master_dtype and no memory: on the meta device, or deferred where there are no weights.
  std::unique_ptr<TrainedModel> model;
  std::unique_ptr<Dataset> train;
  std::unique_ptr<Dataset> eval;  // null without do_eval
};

// Where save_final puts the model.
std::filesystem::path final_folder(const Config& config);

// Opens what `config` names and checks that it fits together: weights that the model has, data that it takes, one
// global batch for `world_size` ranks, classes to wrap. Needs no other rank, so that every mistake shows before ranks
// wait for one another. Reads headers of weights, a few token ids and all
// classes of images. With the key `model` it
// seeds the default generators with `seed`, and draws nothing yet.
TrainingInputs open_training_inputs(const Config& config, int64_t world_size);

}  // namespace fsdp::trainer
