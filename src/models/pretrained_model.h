// What all models here have in common; each is plain single-device LibTorch code without sharding in it.
#pragma once

#include <torch/nn/module.h>

#include <string>
#include <vector>

#include "fsdp/activation_checkpoint.h"

namespace fsdp::models {

// How names in a Hugging Face folder may differ from those of the model's parameters and buffers.
struct FolderNames {
  // The module that folders of the model without its head hold the weights of: names may lack it as a prefix. Empty:
  // there is none.
  std::string base_model;
  // Ends of the names of tensors that older folders hold, and the model does not.
  std::vector<std::string> ignored;
};

// FQNs are the names that transformers writes to a folder.
class PretrainedModel : public torch::nn::Module {
 public:
  using torch::nn::Module::Module;

  virtual FolderNames folder_names() const = 0;
  // Class names (without namespace and Impl) of the blocks that wrap_policy "transformer" makes units of.
  virtual std::vector<std::string> block_class_names() const = 0;
  // Which blocks recompute their activations in backward; by default none. Names of parameters stay.
  virtual void set_activation_checkpointing(const CheckpointPolicy& policy) = 0;
  // Draws the parameters from the default generator of their device, in an order of the model's own, and gives buffers
  // their values before training.
  virtual void initialize() = 0;
};

}  // namespace fsdp::models
