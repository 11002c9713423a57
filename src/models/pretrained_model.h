// The common interface of all models here. Each model is plain single-device LibTorch code that does not know of
// sharding.
#pragma once

#include <torch/nn/module.h>

#include <string>
#include <utility>
#include <vector>

#include "fsdp/activation_checkpoint.h"

namespace fsdp::models {

// How names in a Hugging Face folder may differ from those of the model's parameters and buffers.
struct FolderNames {
  // The module whose weights are in folders of the model without its head: names may lack it as a prefix. Empty if
  // there is no such module.
  std::string base_model;
  // Suffixes of the names of tensors that older folders contain and the model does not have.
  std::vector<std::string> ignored;
  // Folders of a model of which this one is a part, such as the text model of one that also takes images: prefixes of
  // this model's names and those that the folder has in their place, of which the first that fits counts, and prefixes
  // of the names of the other parts.
  std::vector<std::pair<std::string, std::string>> renamed_prefixes = {};
  std::vector<std::string> other_parts = {};
};

// FQNs are the names that transformers writes to a folder.
class PretrainedModel : public torch::nn::Module {
 public:
  using torch::nn::Module::Module;

  virtual FolderNames folder_names() const = 0;
  // Class names (without namespace and Impl) of the blocks that wrap_policy "transformer" makes units of.
  virtual std::vector<std::string> block_class_names() const = 0;
  // Sets which blocks recompute their activations in backward; by default none. Parameter names do not change.
  virtual void set_activation_checkpointing(const CheckpointPolicy& policy) = 0;
  // Draws the parameters from the default generator of their device, in an order specific to the model, and sets
  // buffers to their initial values.
  virtual void initialize() = 0;
};

}  // namespace fsdp::models
