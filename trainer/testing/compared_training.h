// For tests: the same training by this trainer, with ranks as threads, and plainly, with LibTorch's optimizer.
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
#include "models/pretrained_model.h"
#include "training/training_run.h"

namespace fsdp::trainer {

// What is trained.
struct Subject {
  std::function<std::shared_ptr<models::PretrainedModel>()> make_model;  // the same each time; fp32, on the CPU
  std::string dataset = "dummy:29";
  // Samples are not independent: those that one rank has in a pass share a mean and a variance (batch norm).
  bool has_batch_statistics = false;
};

struct Training {
  std::vector<double> losses;  // mean over the global batch
  std::vector<double> grad_norms;
  std::map<std::string, at::Tensor> weights;
  std::vector<StepResult> steps;  // of rank 0
  EngineStats stats;
};

// Six steps of two warm-up ones in fp32, with clipping and weight decay.
Config compared_config();

// No code of this project but the model and the choice of samples. Learning rates are those of compared_config.
Training train_plainly(const Config& config, int world_size, const Subject& subject);

// All ranks must agree on norms; what rank 0 has is returned.
Training train_in_shards(const Config& config, int world_size, const Subject& subject);

// Losses, norms and weights up to `tolerance`, relative.
void expect_same(const Training& actual, const Training& expected, double tolerance = 1e-5);

}  // namespace fsdp::trainer
