// MPT in plain LibTorch, equal to transformers' MptForCausalLM; FQNs are those of Hugging Face checkpoints. A decoder
// without biases and positions, with ALiBi (alibi.h).
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/activation_checkpoint.h"
#include "models/attention.h"
#include "models/causal_lm.h"
#include "models/layers.h"
#include "models/mpt_config.h"
#include "models/recomputed_flops.h"
#include "models/staged_lm.h"

namespace fsdp::models {

class MptAttentionImpl : public torch::nn::Module {
 public:
  MptAttentionImpl(const MptConfig& config, const at::TensorOptions& options);
  // hidden_states: [batch, sequence, d_model]. bias: that of alibi_bias for the longest document, of this rank's heads.
  at::Tensor forward(const at::Tensor& hidden_states, const at::Tensor& bias, const Documents& documents);

 private:
  int64_t head_dim_;
  std::optional<double> limit_;
  AttentionOptions attention_;  // in training mode
  Linear wqkv_, out_proj_;      // wqkv: queries, keys and values, concatenated
};
TORCH_MODULE(MptAttention);

class MptMLPImpl : public torch::nn::Module {
 public:
  MptMLPImpl(const MptConfig& config, const at::TensorOptions& options);
  at::Tensor forward(const at::Tensor& hidden_states);

 private:
  Linear up_proj_, down_proj_;
};
TORCH_MODULE(MptMLP);

class MptBlockImpl : public torch::nn::Module {
 public:
  MptBlockImpl(const MptConfig& config, const at::TensorOptions& options);
  at::Tensor forward(const at::Tensor& hidden_states, const at::Tensor& bias, const Documents& documents);

 private:
  double residual_dropout_;
  LayerNorm norm_1_;
  MptAttention attn_;
  LayerNorm norm_2_;
  MptMLP ffn_;
};
TORCH_MODULE(MptBlock);

class MptModelImpl : public torch::nn::Module {
 public:
  MptModelImpl(const MptConfig& config, const at::TensorOptions& options);
  // input_ids: [batch, sequence] int64.
  at::Tensor embed(const at::Tensor& input_ids) { return kept(wte_, "wte")(input_ids); }
  // bias: see MptAttention.
  at::Tensor run_blocks(at::Tensor hidden_states, int64_t begin, int64_t end, const at::Tensor& bias,
                        const Documents& documents);
  at::Tensor norm(const at::Tensor& hidden_states) { return kept(norm_f_, "norm_f")(hidden_states); }
  // See StagedLM::keep. The last stage keeps the embedding of tokens as well if it is tied.
  void keep(const StagePart& part, bool is_tied);

  const at::Tensor& embedding_weight() const { return wte_->weight; }
  // Sets the policy for the blocks, which are counted from 0.
  void set_activation_checkpointing(const CheckpointPolicy& policy) { checkpointing_ = policy; }
  const CheckpointPolicy& activation_checkpointing() const { return checkpointing_; }

 private:
  Embedding wte_;
  torch::nn::ModuleList blocks_;
  CheckpointPolicy checkpointing_;
  LayerNorm norm_f_{nullptr};
};
TORCH_MODULE(MptModel);

// With tie_word_embeddings, "lm_head.weight" and "transformer.wte.weight" are one parameter under two names.
class MptForCausalLMImpl : public CausalLM, public StagedLM {
 public:
  // Parameters are left uninitialised; see initialize().
  MptForCausalLMImpl(const MptConfig& config, const at::TensorOptions& options);

  // Throws if the sequence is longer than max_seq_len.
  LanguageModelOutput forward(const at::Tensor& input_ids, const at::Tensor& labels = {}) override;

  int64_t vocab_size() const override { return config_.vocab_size; }
  int64_t max_sequence_length() const override { return config_.max_seq_len; }
  FolderNames folder_names() const override { return {.base_model = "transformer", .ignored = {}}; }
  std::vector<std::string> block_class_names() const override { return {"MptBlock"}; }
  void set_activation_checkpointing(const CheckpointPolicy& policy) override {
    transformer_->set_activation_checkpointing(policy);
  }
  double flops_per_token(int64_t sequence_length) const override;
  double recomputed_flops_per_token(int64_t sequence_length) const override;
  void initialize() override { initialize_parameters(*this, config_.initializer_range); }
  std::vector<TensorParallelRule> tensor_parallel_plan() const override;

  int64_t num_blocks() const override { return config_.n_layers; }
  Documents documents_in(const at::Tensor& input_ids) const override { return CausalLM::documents_in(input_ids); }
  // Throws if the sequence is longer than max_seq_len.
  Activations embed(const at::Tensor& input_ids, const Documents& documents) override;
  Activations run_blocks(Activations activations, int64_t begin, int64_t end, const Documents& documents) override;
  LanguageModelOutput finish(Activations activations, const at::Tensor& labels) override {
    const at::Tensor normed = transformer_->norm(std::exchange(activations.at(0), at::Tensor()));
    return predict(lm_head_, normed, next_token_labels(labels));
  }
  std::string tied_parameter() const override { return config_.tie_word_embeddings ? "transformer.wte.weight" : ""; }

  const MptConfig& config() const { return config_; }

 protected:
  void drop_all_but(const StagePart& part) override;

 private:
  std::vector<Products> products_of_block(int64_t sequence_length) const;  // for one token

  MptConfig config_;
  MptModel transformer_;
  Linear lm_head_{nullptr};
};
TORCH_MODULE(MptForCausalLM);

}  // namespace fsdp::models
