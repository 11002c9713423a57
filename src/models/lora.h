// Low-rank adapters for a frozen model (Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", 2021).
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <string>
#include <vector>

namespace fsdp::models {

struct LoraOptions {
  int64_t rank = 8;
  double alpha = 16;  // adapters are scaled by alpha / rank
  // Names under which the layers are registered in their parent modules.
  std::vector<std::string> targets = {"q_proj", "v_proj"};
};

// Freezes all parameters below `root` and gives each Linear layer that is registered under one of the target names a
// trainable adapter with the dtype and device of its weight. Parameters: <layer>.lora_A, <layer>.lora_B. Returns the
// number of layers that got an adapter. A target that matches no layer is an error that names it. Must be called before
// fully_shard.
int64_t add_lora(torch::nn::Module& root, const LoraOptions& options);

// Draws every lora_A below `root` from the default generator, uniformly within 1 / sqrt(in_features) as PEFT does, and
// sets lora_B to zero, so that the outputs of the model are those without adapters. Works on sharded models inside
// ShardedModule::with_full_params.
void initialize_lora(torch::nn::Module& root);

}  // namespace fsdp::models
