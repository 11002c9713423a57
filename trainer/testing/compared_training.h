// For tests: trains a model twice, with this trainer (ranks as threads), and plainly, with LibTorch's optimizer.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "config/config.h"
#include "fsdp/fully_shard.h"
#include "loop/training_run.h"
#include "models/pretrained_model.h"

namespace fsdp::trainer {

// The model and data to train.
struct Subject {
  std::function<std::shared_ptr<models::PretrainedModel>()> make_model;  // the same each time; fp32, on the CPU
  std::string dataset = "dummy:29";
  // Whether samples influence each other: the samples of one rank in one pass share a mean and a variance (batch norm).
  bool has_batch_statistics = false;
};

struct Training {
  std::vector<double> losses;  // means over the global batch
  std::vector<double> grad_norms;
  std::map<std::string, at::Tensor> weights;
  std::vector<StepResult> steps;  // of rank 0
  EngineStats stats;
};

// Returns a config of six steps, two of them for warm-up, in fp32, with clipping and weight decay.
Config compared_config();

// Trains without code of this project except the model and the choice of samples. The learning rates are those of
// compared_config.
Training train_plainly(const Config& config, int world_size, const Subject& subject);

// Trains with this trainer. Expects the same norms on all ranks, and returns the results of rank 0, with losses
// averaged over ranks.
Training train_in_shards(const Config& config, int world_size, const Subject& subject);

// Expects the same losses, norms and weights, up to a relative `tolerance`.
void expect_same(const Training& actual, const Training& expected, double tolerance = 1e-5);

}  // namespace fsdp::trainer
