// The decoder-only transformers of many families in plain LibTorch, equal to those of transformers; FQNs are those of
// Hugging Face checkpoints.
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
#include "models/causal_lm.h"
#include "models/decoder/decoder_attention.h"
#include "models/decoder/decoder_config.h"
#include "models/decoder/decoder_mlp.h"
#include "models/decoder/decoder_moe.h"
#include "models/layers.h"
#include "models/recomputed_flops.h"
#include "models/rope.h"

namespace fsdp::models {

// x + attention(x), then x + mlp(x), with the norms, dropout and multiplier that the config says. Experts may stand in
// the place of the MLP.
class DecoderLayerImpl : public torch::nn::Module {
 public:
  // Hidden states, and the logits of the layer's router: undefined without experts, or if the config needs no loss of
  // routers.
  using Output = std::tuple<at::Tensor, at::Tensor>;

  // index: of the layer in the config, from 0.
  DecoderLayerImpl(const DecoderConfig& config, size_t index, const at::TensorOptions& options);
  Output forward(const at::Tensor& hidden_states, const RotaryFactors& rotary);

 private:
  // The norm that is registered as `name`, or none for an empty name.
  RMSNorm make_norm(const std::string& name, const DecoderConfig& config, const at::TensorOptions& options);
  // Returns residual + the output of attention or MLP.
  at::Tensor add(const at::Tensor& residual, at::Tensor output, RMSNorm& norm_after) const;

  double residual_multiplier_, dropout_;
  DecoderAttention self_attn_;
  DecoderMLP mlp_{nullptr};  // or
  DecoderMoe moe_{nullptr};
  bool returns_logits_;
  RMSNorm before_attention_{nullptr}, after_attention_{nullptr}, before_mlp_{nullptr}, after_mlp_{nullptr};
};
TORCH_MODULE(DecoderLayer);

class DecoderModelImpl : public torch::nn::Module {
 public:
  DecoderModelImpl(const DecoderConfig& config, const at::TensorOptions& options);
  struct Output {
    at::Tensor hidden_states;               // after the final norm
    std::vector<at::Tensor> router_logits;  // of the layers that return them
  };
  // input_ids: [batch, sequence] int64. Activations have the dtype and device of the embedding's output.
  Output forward(const at::Tensor& input_ids);

  const at::Tensor& embedding_weight() const { return embed_tokens_->weight; }
  // Sets the policy for the decoder layers, which are counted from 0.
  void set_activation_checkpointing(const CheckpointPolicy& policy) { checkpointing_ = policy; }
  const CheckpointPolicy& activation_checkpointing() const { return checkpointing_; }

 private:
  at::Tensor embed(const at::Tensor& input_ids);

  double embedding_multiplier_;
  bool rounds_embedding_multiplier_;
  std::vector<RopeConfig> ropes_;
  std::vector<std::optional<size_t>> rope_of_layer_;
  Embedding embed_tokens_;
  torch::nn::ModuleList layers_;
  CheckpointPolicy checkpointing_;
  RMSNorm norm_{nullptr};
};
TORCH_MODULE(DecoderModel);

// With tie_word_embeddings, "lm_head.weight" and "model.embed_tokens.weight" are one parameter under two names.
class DecoderForCausalLMImpl : public CausalLM {
 public:
  // Parameters are left uninitialised; see initialize().
  DecoderForCausalLMImpl(const DecoderConfig& config, const at::TensorOptions& options);

  LanguageModelOutput forward(const at::Tensor& input_ids, const at::Tensor& labels = {}) override;

  int64_t vocab_size() const override { return config_.vocab_size; }
  int64_t max_sequence_length() const override { return config_.max_position_embeddings; }
  FolderNames folder_names() const override;
  std::vector<std::string> block_class_names() const override { return {"DecoderLayer"}; }
  void set_activation_checkpointing(const CheckpointPolicy& policy) override {
    model_->set_activation_checkpointing(policy);
  }
  double flops_per_token(int64_t sequence_length) const override;
  double recomputed_flops_per_token(int64_t sequence_length) const override;
  void initialize() override { initialize_parameters(*this, config_.initializer_range); }

  const DecoderConfig& config() const { return config_; }

 private:
  // The weights of the MLP, or of the router and of the experts of a token, that multiply each token.
  double mlp_weights(const DecoderLayerConfig& layer) const;
  // For one token.
  std::vector<Products> products_of_layer(const DecoderLayerConfig& layer, int64_t sequence_length) const;

  DecoderConfig config_;
  DecoderModel model_;
  Linear lm_head_{nullptr};
};
TORCH_MODULE(DecoderForCausalLM);

}  // namespace fsdp::models
