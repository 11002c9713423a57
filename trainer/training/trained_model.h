// A model and what its kind means for training.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "config/config.h"
#include "data/batch.h"
#include "data/dataset.h"
#include "data/dataset_spec.h"
#include "models/pretrained_model.h"
#include "training/separate_parameters.h"

namespace fsdp::trainer {

// What one sample costs.
struct SampleWork {
  int64_t tokens = 0;           // that the model reads; 0: its samples are not made of tokens
  double flops = 0;             // of forward and backward, recomputation not counted
  double recomputed_flops = 0;  // what activation checkpointing computes again
};

class TrainedModel {
 public:
  virtual ~TrainedModel() = default;

  virtual models::PretrainedModel& module() const = 0;
  // The data that `spec` names, as this model takes them. Errors say what does not fit.
  virtual std::unique_ptr<Dataset> open_dataset(const DatasetSpec& spec) const = 0;
  // Of such data: the mean over predictions (Dataset::predictions).
  virtual at::Tensor loss(const Batch& batch) const = 0;
  // Of each sample of such data.
  virtual SampleWork sample_work(const Batch& batch) const = 0;
  // Those of its parameters that fully_shard does not see; null: there are none.
  virtual SeparateParameters* separate_parameters() const { return nullptr; }
};

// `model` must be of a kind that is trained here: a causal or sequence-to-sequence language model, an image
// classifier or a model of tabular data. A config whose keys do not fit the kind or the model is a ConfigError.
std::unique_ptr<TrainedModel> make_trained_model(std::shared_ptr<models::PretrainedModel> model, const Config& config);

}  // namespace fsdp::trainer
