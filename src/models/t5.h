// T5 in plain LibTorch, equal to transformers' T5ForConditionalGeneration; FQNs are those of Hugging Face checkpoints.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "fsdp/activation_checkpoint.h"
#include "models/activations.h"
#include "models/attention.h"
#include "models/layers.h"
#include "models/recomputed_flops.h"
#include "models/relative_positions.h"
#include "models/seq2seq_lm.h"
#include "models/t5_config.h"

namespace fsdp::models {

enum class T5Half { kEncoder, kDecoder };

class T5AttentionImpl : public torch::nn::Module {
 public:
  T5AttentionImpl(const T5Config& config, const at::TensorOptions& options);
  // Adds the parameter that position_bias reads.
  void add_position_bias(const T5Config& config, T5Half half, const at::TensorOptions& options);

  // hidden_states: [batch, queries, d_model]; key_states: [batch, keys, d_model]; bias: see biased_attention.
  at::Tensor forward(const at::Tensor& hidden_states, const at::Tensor& key_states, const at::Tensor& bias);
  // [1, heads, length, length]; undefined without add_position_bias.
  at::Tensor position_bias(int64_t length);

 private:
  int64_t head_dim_;
  AttentionOptions attention_;  // options in training mode
  RelativeBuckets buckets_;
  Linear q_{nullptr}, k_{nullptr}, v_{nullptr}, o_{nullptr};
  Embedding relative_attention_bias_{nullptr};
};
TORCH_MODULE(T5Attention);

// Norm, attention, and residual. The attention is registered as the child `name`.
class T5LayerAttentionImpl : public torch::nn::Module {
 public:
  T5LayerAttentionImpl(const char* name, const T5Config& config, const at::TensorOptions& options);
  // key_states: undefined for self-attention.
  at::Tensor forward(const at::Tensor& hidden_states, const at::Tensor& key_states, const at::Tensor& bias);
  T5Attention& attention() { return attention_; }

 private:
  double dropout_;
  T5Attention attention_;
  RMSNorm layer_norm_;
};
TORCH_MODULE(T5LayerAttention);

class T5DenseImpl : public torch::nn::Module {
 public:
  T5DenseImpl(const T5Config& config, const at::TensorOptions& options);
  at::Tensor forward(const at::Tensor& hidden_states);

 private:
  Activation activation_;
  double dropout_;
  Linear wi_{nullptr}, gate_{nullptr}, wo_{nullptr};  // gate_: only if is_gated_act
};
TORCH_MODULE(T5Dense);

class T5LayerFFImpl : public torch::nn::Module {
 public:
  T5LayerFFImpl(const T5Config& config, const at::TensorOptions& options);
  at::Tensor forward(const at::Tensor& hidden_states);

 private:
  double dropout_;
  T5Dense dense_;
  RMSNorm layer_norm_;
};
TORCH_MODULE(T5LayerFF);

class T5BlockImpl : public torch::nn::Module {
 public:
  // The block with this index in its stack, from 0. Block 0 has the position bias.
  T5BlockImpl(const T5Config& config, T5Half half, int64_t index, const at::TensorOptions& options);
  // bias: the bias of self-attention, including the mask; undefined for block 0, which computes it. encoder_states and
  // encoder_bias: the encoder's output and the attention bias for it; undefined in an encoder. Returns the hidden
  // states and, from block 0, the bias that it computed (else undefined).
  std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& hidden_states, const at::Tensor& bias,
                                             const at::Tensor& mask, const at::Tensor& encoder_states,
                                             const at::Tensor& encoder_bias);

 private:
  T5LayerAttention self_attention_, cross_attention_{nullptr};
  T5LayerFF feed_forward_{nullptr};
};
TORCH_MODULE(T5Block);

class T5StackImpl : public torch::nn::Module {
 public:
  T5StackImpl(const T5Config& config, T5Half half, const at::Tensor& embedding, const at::TensorOptions& options);
  // input_ids: [batch, length]. source_mask: bool, [batch, 1, 1, source], or undefined. encoder_states: only for a
  // decoder.
  at::Tensor forward(const at::Tensor& input_ids, const at::Tensor& source_mask, const at::Tensor& encoder_states = {});
  // Sets the policy for the blocks, which are counted from 0 in each stack.
  void set_activation_checkpointing(const CheckpointPolicy& policy) { checkpointing_ = policy; }
  const CheckpointPolicy& activation_checkpointing() const { return checkpointing_; }

 private:
  T5Half half_;
  double dropout_;
  Embedding embed_tokens_;
  torch::nn::ModuleList block_;
  CheckpointPolicy checkpointing_;
  RMSNorm final_layer_norm_{nullptr};
};
TORCH_MODULE(T5Stack);

// "shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight" and, with tie_word_embeddings,
// "lm_head.weight" are one parameter.
class T5ForConditionalGenerationImpl : public Seq2SeqLM {
 public:
  // Parameters are left uninitialised; see initialize().
  T5ForConditionalGenerationImpl(const T5Config& config, const at::TensorOptions& options);

  LanguageModelOutput forward(const at::Tensor& input_ids, const at::Tensor& labels,
                              const at::Tensor& attention_mask = {}) override;

  int64_t vocab_size() const override { return config_.vocab_size; }
  int64_t pad_token_id() const override { return config_.pad_token_id; }
  FolderNames folder_names() const override {
    return {.base_model = {}, .ignored = {".layer.1.EncDecAttention.relative_attention_bias.weight"}};
  }
  std::vector<std::string> block_class_names() const override { return {"T5Block"}; }
  // Blocks are counted from 0 in the encoder, and again from 0 in the decoder.
  void set_activation_checkpointing(const CheckpointPolicy& policy) override;
  double flops_per_sample(int64_t source_length, int64_t target_length) const override;
  double recomputed_flops_per_sample(int64_t source_length, int64_t target_length) const override;
  void initialize() override { initialize_parameters(*this, config_.initializer_factor); }

  const T5Config& config() const { return config_; }

 private:
  // Products of one block, for one sample.
  struct BlockProducts {
    std::vector<Products> encoder, decoder;
  };
  BlockProducts products(int64_t source_length, int64_t target_length) const;

  T5Config config_;
  Embedding shared_;
  T5Stack encoder_, decoder_;
  Linear lm_head_;
};
TORCH_MODULE(T5ForConditionalGeneration);

}  // namespace fsdp::models
