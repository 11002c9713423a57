// What a run starts from: the model's folder and the data, opened and checked.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>

#include "config/config.h"
#include "data/dataset.h"
#include "models/causal_lm.h"
#include "models/pretrained.h"

namespace fsdp::trainer {

struct TrainingInputs {
  models::PretrainedWeights weights;
  std::shared_ptr<models::CausalLM> model;  // on the meta device, with parameters of master_dtype
  Dataset train;
  std::optional<Dataset> eval;  // with do_eval
};

// Where save_final puts the model.
std::filesystem::path final_folder(const Config& config);

// Opens what `config` names and checks that it fits together: weights that the model has, token ids below its
// vocabulary size, samples that it can attend to, one global batch for `world_size` ranks, classes to wrap.
// Needs no other rank, so that every mistake shows before ranks wait for one another. Reads headers of
// weights and all token ids.
TrainingInputs open_training_inputs(const Config& config, int64_t world_size);

}  // namespace fsdp::trainer
