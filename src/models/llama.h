// Llama in plain LibTorch, equal to transformers' LlamaForCausalLM; FQNs are those of Hugging Face checkpoints.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <string>
#include <vector>

#include "fsdp/activation_checkpoint.h"
#include "models/activations.h"
#include "models/causal_lm.h"
#include "models/layers.h"
#include "models/llama_config.h"
#include "models/recomputed_flops.h"
#include "models/rope.h"

namespace fsdp::models {

// Causal attention in which groups of query heads share a key and a value head.
class LlamaAttentionImpl : public torch::nn::Module {
 public:
  LlamaAttentionImpl(const LlamaConfig& config, const at::TensorOptions& options);
  // hidden_states: [batch, sequence, hidden_size].
  at::Tensor forward(const at::Tensor& hidden_states, const RotaryFactors& rotary);

 private:
  int64_t head_dim_;
  double dropout_;
  Linear q_proj_{nullptr}, k_proj_{nullptr}, v_proj_{nullptr}, o_proj_{nullptr};
};
TORCH_MODULE(LlamaAttention);

// down_proj(act(gate_proj(x)) * up_proj(x)).
class LlamaMLPImpl : public torch::nn::Module {
 public:
  LlamaMLPImpl(const LlamaConfig& config, const at::TensorOptions& options);
  at::Tensor forward(const at::Tensor& hidden_states);

 private:
  Activation activation_;
  Linear gate_proj_{nullptr}, up_proj_{nullptr}, down_proj_{nullptr};
};
TORCH_MODULE(LlamaMLP);

class LlamaDecoderLayerImpl : public torch::nn::Module {
 public:
  LlamaDecoderLayerImpl(const LlamaConfig& config, const at::TensorOptions& options);
  at::Tensor forward(const at::Tensor& hidden_states, const RotaryFactors& rotary);

 private:
  LlamaAttention self_attn_;
  LlamaMLP mlp_;
  RMSNorm input_layernorm_, post_attention_layernorm_;
};
TORCH_MODULE(LlamaDecoderLayer);

class LlamaModelImpl : public torch::nn::Module {
 public:
  LlamaModelImpl(const LlamaConfig& config, const at::TensorOptions& options);
  // input_ids: [batch, sequence] int64. Returns the last hidden states after the final norm. Activations have the dtype
  // and device of the embedding's output.
  at::Tensor forward(const at::Tensor& input_ids);

  const at::Tensor& embedding_weight() const { return embed_tokens_->weight; }
  // Sets the policy for the decoder layers, which are counted from 0.
  void set_activation_checkpointing(const CheckpointPolicy& policy) { checkpointing_ = policy; }
  const CheckpointPolicy& activation_checkpointing() const { return checkpointing_; }

 private:
  RopeConfig rope_;
  int64_t head_dim_;
  Embedding embed_tokens_;
  torch::nn::ModuleList layers_;
  CheckpointPolicy checkpointing_;
  RMSNorm norm_{nullptr};
};
TORCH_MODULE(LlamaModel);

// With tie_word_embeddings, "lm_head.weight" and "model.embed_tokens.weight" are one parameter under two names.
class LlamaForCausalLMImpl : public CausalLM {
 public:
  // Parameters are left uninitialised; see initialize().
  LlamaForCausalLMImpl(const LlamaConfig& config, const at::TensorOptions& options);

  LanguageModelOutput forward(const at::Tensor& input_ids, const at::Tensor& labels = {}) override;

  int64_t vocab_size() const override { return config_.vocab_size; }
  int64_t max_sequence_length() const override { return config_.max_position_embeddings; }
  FolderNames folder_names() const override { return {.base_model = "model", .ignored = {".rotary_emb.inv_freq"}}; }
  std::vector<std::string> block_class_names() const override { return {"LlamaDecoderLayer"}; }
  void set_activation_checkpointing(const CheckpointPolicy& policy) override {
    model_->set_activation_checkpointing(policy);
  }
  double flops_per_token(int64_t sequence_length) const override;
  double recomputed_flops_per_token(int64_t sequence_length) const override;
  void initialize() override { initialize_parameters(*this, config_.initializer_range); }

  const LlamaConfig& config() const { return config_; }

 private:
  std::vector<Products> products_of_layer(int64_t sequence_length) const;  // for one token

  LlamaConfig config_;
  LlamaModel model_;
  Linear lm_head_{nullptr};
};
TORCH_MODULE(LlamaForCausalLM);

}  // namespace fsdp::models
