// What language models of causal blocks have in common.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "models/causal_lm.h"

namespace fsdp::models {

// [batch, sequence, heads * head_dim] -> [batch, heads, sequence, head_dim], a view.
at::Tensor split_heads(const at::Tensor& x, int64_t head_dim);

struct AttentionOptions {
  double dropout = 0.0;              // of the weights of the positions
  std::optional<double> scale = {};  // of query · key; unset: 1/sqrt(head_dim)
  bool in_full_precision = false;    // bf16 and fp16 are computed in fp32 and rounded at the end
};

// Each position attends to itself and to those before it. query: [batch, heads, sequence, head_dim]; key and value:
// the same, or with fewer heads, each of which a group of query heads shares. Returns [batch, sequence,
// heads * head_dim] of the dtype of `value`.
at::Tensor causal_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                            const AttentionOptions& options);

// Throws unless input_ids is [batch, sequence] and labels, if defined, of the same shape. `model` is for the error.
void check_tokens(const char* model, const at::Tensor& input_ids, const at::Tensor& labels);

// The logits, and their loss if there are labels (CausalLM::forward). The loss is formed in fp32, for fp64 logits in
// fp64. With no label to predict it is NaN, as in transformers.
CausalLMOutput with_next_token_loss(const at::Tensor& logits, const at::Tensor& labels);

// 6 M + 12 L Q S. M: weights of the linear layers, the head included and embeddings not (a multiply and an add in
// forward, twice that in backward); for each of L layers with queries of Q = heads * head_dim elements, the products
// with S keys and S values. All S positions count, masked or not.
double decoder_flops_per_token(double linear_weights, double layers, double query_size, double sequence_length);

}  // namespace fsdp::models
