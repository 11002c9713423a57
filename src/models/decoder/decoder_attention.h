#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <vector>

#include "models/attention.h"
#include "models/decoder/decoder_config.h"
#include "models/layers.h"
#include "models/rope.h"

namespace fsdp::models {

// Causal attention in which groups of query heads share a key and a value head.
class DecoderAttentionImpl : public torch::nn::Module {
 public:
  DecoderAttentionImpl(const DecoderConfig& config, const DecoderLayerConfig& layer, const at::TensorOptions& options);
  // hidden_states: [batch, sequence, hidden_size]. `rotary`: undefined factors rotate nothing.
  at::Tensor forward(const at::Tensor& hidden_states, const RotaryFactors& rotary, const Documents& documents);

 private:
  // [batch, heads, sequence, head_dim]
  struct Heads {
    at::Tensor query, key, value;
  };
  Heads project(const at::Tensor& hidden_states, const RotaryFactors& rotary);
  // The sizes of queries, keys and values in the output of the fused projection.
  std::vector<int64_t> sizes_of(int64_t projected) const;
  // Applies the norm and the limit, and returns [batch, heads, sequence, head_dim]. `norm`: null for values.
  at::Tensor heads(const at::Tensor& projection, RMSNorm& norm) const;

  int64_t head_dim_, query_size_, key_size_;
  QueryKeyNorm query_key_norm_;
  std::optional<double> limit_;
  AttentionOptions attention_;
  Linear q_proj_{nullptr}, k_proj_{nullptr}, v_proj_{nullptr};  // or
  Linear qkv_proj_{nullptr};
  Linear o_proj_{nullptr};
  RMSNorm q_norm_{nullptr}, k_norm_{nullptr}, no_norm_{nullptr};
};
TORCH_MODULE(DecoderAttention);

}  // namespace fsdp::models
