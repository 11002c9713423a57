// A model with the data, loss and cost that its kind implies.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "config/config.h"
#include "data/batch.h"
#include "data/dataset.h"
#include "data/dataset_spec.h"
#include "models/pretrained_model.h"
#include "models/staged_lm.h"
#include "tasks/separate_parameters.h"

namespace fsdp::trainer {

// The cost of one sample.
struct SampleWork {
  int64_t tokens = 0;           // tokens that the model reads; 0: samples are not made of tokens
  double flops = 0;             // of forward and backward, without recomputation
  double recomputed_flops = 0;  // flops that activation checkpointing computes again
};

class TrainedModel {
 public:
  virtual ~TrainedModel() = default;

  virtual models::PretrainedModel& module() const = 0;
  // Opens the data that `spec` names, in the form that this model takes. Errors say what does not fit.
  virtual std::unique_ptr<Dataset> open_dataset(const DatasetSpec& spec) const = 0;
  // Returns the loss of a batch of such data, averaged over predictions (Dataset::predictions).
  virtual at::Tensor loss(const Batch& batch) const = 0;
  // Returns the work for each sample of such a batch.
  virtual SampleWork sample_work(const Batch& batch) const = 0;
  // Returns the parameters that fully_shard does not manage, or null if the model has none.
  virtual SeparateParameters* separate_parameters() const { return nullptr; }
  // Returns the model as one that can be cut into the stages of a pipeline, or null if it cannot be.
  virtual models::StagedLM* staged() const { return nullptr; }
};

// Wraps `model`, which must be a causal or sequence-to-sequence language model, an image classifier or a model of
// tabular data. Throws a ConfigError if keys of the config do not fit the kind or the model.
std::unique_ptr<TrainedModel> make_trained_model(const std::shared_ptr<models::PretrainedModel>& model,
                                                 const Config& config);

}  // namespace fsdp::trainer
