// GPT-2 in plain LibTorch, equal to transformers' GPT2LMHeadModel; FQNs are those of Hugging Face checkpoints. minGPT
// is the same model.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/activation_checkpoint.h"
#include "models/activations.h"
#include "models/attention.h"
#include "models/causal_lm.h"
#include "models/gpt2_config.h"
#include "models/layers.h"
#include "models/recomputed_flops.h"
#include "models/staged_lm.h"

namespace fsdp::models {

class GPT2AttentionImpl : public torch::nn::Module {
 public:
  // `layer` counts from 0.
  GPT2AttentionImpl(const GPT2Config& config, int64_t layer, const at::TensorOptions& options);
  // hidden_states: [batch, sequence, n_embd].
  at::Tensor forward(const at::Tensor& hidden_states, const Documents& documents);

 private:
  int64_t head_dim_;
  AttentionOptions attention_;  // in training mode
  double residual_dropout_;
  Conv1D c_attn_, c_proj_;  // c_attn: queries, keys and values, concatenated
};
TORCH_MODULE(GPT2Attention);

class GPT2MLPImpl : public torch::nn::Module {
 public:
  GPT2MLPImpl(const GPT2Config& config, const at::TensorOptions& options);
  at::Tensor forward(const at::Tensor& hidden_states);

 private:
  Activation activation_;
  double residual_dropout_;
  Conv1D c_fc_, c_proj_;
};
TORCH_MODULE(GPT2MLP);

class GPT2BlockImpl : public torch::nn::Module {
 public:
  GPT2BlockImpl(const GPT2Config& config, int64_t layer, const at::TensorOptions& options);
  at::Tensor forward(const at::Tensor& hidden_states, const Documents& documents);

 private:
  LayerNorm ln_1_;
  GPT2Attention attn_;
  LayerNorm ln_2_;
  GPT2MLP mlp_;
};
TORCH_MODULE(GPT2Block);

class GPT2ModelImpl : public torch::nn::Module {
 public:
  GPT2ModelImpl(const GPT2Config& config, const at::TensorOptions& options);
  // input_ids: [batch, sequence] int64.
  at::Tensor embed(const at::Tensor& input_ids, const Documents& documents);
  at::Tensor run_blocks(at::Tensor hidden_states, int64_t begin, int64_t end, const Documents& documents);
  at::Tensor norm(const at::Tensor& hidden_states);
  // See StagedLM::keep. The last stage keeps the embedding of tokens as well if it is tied.
  void keep(const StagePart& part, bool is_tied);

  const at::Tensor& embedding_weight() const { return wte_->weight; }
  // Sets the policy for the blocks, which are counted from 0.
  void set_activation_checkpointing(const CheckpointPolicy& policy) { checkpointing_ = policy; }
  const CheckpointPolicy& activation_checkpointing() const { return checkpointing_; }

 private:
  double embedding_dropout_;
  Embedding wte_, wpe_;  // token embeddings, position embeddings
  torch::nn::ModuleList h_;
  CheckpointPolicy checkpointing_;
  LayerNorm ln_f_{nullptr};
};
TORCH_MODULE(GPT2Model);

// With tie_word_embeddings, "lm_head.weight" and "transformer.wte.weight" are one parameter under two names.
class GPT2LMHeadModelImpl : public CausalLM, public StagedLM {
 public:
  // Parameters are left uninitialised; see initialize().
  GPT2LMHeadModelImpl(const GPT2Config& config, const at::TensorOptions& options);

  // Throws if the sequence is longer than n_positions.
  LanguageModelOutput forward(const at::Tensor& input_ids, const at::Tensor& labels = {}) override;

  int64_t vocab_size() const override { return config_.vocab_size; }
  int64_t max_sequence_length() const override { return config_.n_positions; }
  // The ignored names are buffers: the causal mask and the value of masked scores.
  FolderNames folder_names() const override {
    return {.base_model = "transformer", .ignored = {".attn.bias", ".attn.masked_bias"}};
  }
  std::vector<std::string> block_class_names() const override { return {"GPT2Block"}; }
  void set_activation_checkpointing(const CheckpointPolicy& policy) override {
    transformer_->set_activation_checkpointing(policy);
  }
  double flops_per_token(int64_t sequence_length) const override;
  double recomputed_flops_per_token(int64_t sequence_length) const override;
  void initialize() override { initialize_parameters(*this, config_.initializer_range); }
  std::vector<TensorParallelRule> tensor_parallel_plan() const override;

  int64_t num_blocks() const override { return config_.n_layer; }
  // Throws if the sequence is longer than n_positions.
  Documents documents_in(const at::Tensor& input_ids) const override { return CausalLM::documents_in(input_ids); }
  Activations embed(const at::Tensor& input_ids, const Documents& documents) override;
  Activations run_blocks(Activations activations, int64_t begin, int64_t end, const Documents& documents) override {
    return {transformer_->run_blocks(std::move(activations.at(0)), begin, end, documents)};
  }
  LanguageModelOutput finish(Activations activations, const at::Tensor& labels) override {
    const at::Tensor normed = transformer_->norm(std::exchange(activations.at(0), at::Tensor()));
    return predict(lm_head_, normed, next_token_labels(labels));
  }
  std::string tied_parameter() const override { return config_.tie_word_embeddings ? "transformer.wte.weight" : ""; }

  const GPT2Config& config() const { return config_; }

 protected:
  void drop_all_but(const StagePart& part) override;

 private:
  std::vector<Products> products_of_block(int64_t sequence_length) const;  // for one token

  GPT2Config config_;
  GPT2Model transformer_;
  Linear lm_head_{nullptr};
};
TORCH_MODULE(GPT2LMHeadModel);

}  // namespace fsdp::models
