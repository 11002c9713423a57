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
#include <utility>
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
#include "models/staged_lm.h"

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
  Output forward(const at::Tensor& hidden_states, const RotaryFactors& rotary, const Documents& documents);

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
  // input_ids: [batch, sequence] int64. Returns hidden states with the dtype and device of the embedding's weight.
  at::Tensor embed(const at::Tensor& input_ids);
  // Hidden states have one of `parts` equal parts of the sequence.
  StagedLM::Activations run_layers(StagedLM::Activations activations, int64_t begin, int64_t end, int64_t parts,
                                   const Documents& documents);
  at::Tensor norm(const at::Tensor& hidden_states);
  // See StagedLM::keep. The last stage keeps the embedding as well if it is tied.
  void keep(const StagePart& part, bool is_tied);

  const at::Tensor& embedding_weight() const { return embed_tokens_->weight; }
  // Sets the policy for the decoder layers, which are counted from 0.
  void set_activation_checkpointing(const CheckpointPolicy& policy) { checkpointing_ = policy; }
  const CheckpointPolicy& activation_checkpointing() const { return checkpointing_; }

 private:
  // For sequences of this length.
  std::vector<RotaryFactors> all_rotary_factors(int64_t sequence, const Documents& documents,
                                                const at::TensorOptions& options) const;

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
class DecoderForCausalLMImpl : public CausalLM, public StagedLM {
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
  std::vector<TensorParallelRule> tensor_parallel_plan() const override;

  int64_t num_blocks() const override { return static_cast<int64_t>(config_.layers.size()); }
  Documents documents_in(const at::Tensor& input_ids) const override { return CausalLM::documents_in(input_ids); }
  Activations embed(const at::Tensor& input_ids, const Documents&) override { return {model_->embed(input_ids)}; }
  Activations run_blocks(Activations activations, int64_t begin, int64_t end, const Documents& documents) override {
    const int64_t parts = split_positions() ? split_positions()->parts() : 1;
    return model_->run_layers(std::move(activations), begin, end, parts, documents);
  }
  LanguageModelOutput finish(Activations activations, const at::Tensor& labels) override;
  std::string tied_parameter() const override { return config_.tie_word_embeddings ? "model.embed_tokens.weight" : ""; }

  const DecoderConfig& config() const { return config_; }

 protected:
  void drop_all_but(const StagePart& part) override;

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
