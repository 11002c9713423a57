// What the trainer needs of a language model; each model is plain single-device LibTorch code without
// sharding in it.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "fsdp/activation_checkpoint.h"

namespace fsdp::models {

struct CausalLMOutput {
  at::Tensor loss;    // scalar fp32, mean over the predicted tokens; undefined without labels
  at::Tensor logits;  // [batch, sequence, vocabulary]
};

// How names in a Hugging Face folder may differ from those of the model's parameters.
struct FolderNames {
  // The module that folders of the model without its head hold the weights of: names may lack it as a prefix.
  std::string base_model;
  // Ends of the names of buffers that older folders hold, and the model does not.
  std::vector<std::string> buffers;
};

class CausalLM : public torch::nn::Module {
 public:
  using torch::nn::Module::Module;

  // input_ids: [batch, sequence] int64. labels: the same shape, or undefined; shifted inside (position i
  // predicts label i+1), -100 is ignored.
  virtual CausalLMOutput forward(const at::Tensor& input_ids, const at::Tensor& labels = {}) = 0;

  virtual int64_t vocab_size() const = 0;
  virtual int64_t max_sequence_length() const = 0;
  virtual FolderNames folder_names() const = 0;
  // Class names (without namespace and Impl) of the blocks that wrap_policy "transformer" makes units of.
  virtual std::vector<std::string> block_class_names() const = 0;
  // Which blocks recompute their activations in backward; by default none. Names of parameters stay.
  virtual void set_activation_checkpointing(const CheckpointPolicy& policy) = 0;
  // Floating point operations of one token's forward and backward at this sequence length, recomputation not
  // counted.
  virtual double flops_per_token(int64_t sequence_length) const = 0;
};

// Builds the model that a Hugging Face config.json describes, with parameters of `dtype` on `device`; on the
// meta device parameters take no memory and must be filled before use. Its FQNs are the names that transformers
// writes to a folder. Unknown architectures and unsupported settings are errors that name the key, its value and
// what is accepted.
std::shared_ptr<CausalLM> make_causal_lm(const nlohmann::json& config, c10::ScalarType dtype, c10::Device device);

}  // namespace fsdp::models
