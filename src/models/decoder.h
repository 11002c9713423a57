// What transformer language models have in common: attention, losses, FLOPs.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "models/language_model.h"

namespace fsdp::models {

// A label that is not predicted.
constexpr int64_t kIgnoredLabel = -100;

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

// Each query attends to all keys, with `bias` added to the scaled products: broadcastable to [batch, heads, queries,
// keys], or undefined. query: [batch, heads, queries, head_dim]; key and value: [batch, heads, keys, head_dim]. Returns
// as causal_attention.
at::Tensor biased_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                            const at::Tensor& bias, const AttentionOptions& options);

// Throws unless input_ids is [batch, sequence] and labels, if defined, of the same shape. `model` is for the error.
void check_tokens(const char* model, const at::Tensor& input_ids, const at::Tensor& labels);

// The mean cross entropy of logits [batch, sequence, vocabulary] and labels [batch, sequence], where position i
// predicts label i; -100 is ignored. Formed in fp32, for fp64 logits in fp64. With no label to predict it is NaN, as in
// transformers.
at::Tensor token_loss(const at::Tensor& logits, const at::Tensor& labels);

// The logits, and if there are labels the token_loss of position i and label i+1 (CausalLM::forward).
LanguageModelOutput with_next_token_loss(const at::Tensor& logits, const at::Tensor& labels);

// FLOPs of forward and backward. Of linear layers with this many weights for this many tokens: a multiply and an add
// for each in forward, twice that in backward.
double linear_flops(double weights, double tokens);
// Of one layer's products of queries with keys, and of what they are weighted with and values, each `size` = heads *
// head_dim elements wide. All positions count, masked or not.
double attention_flops(double size, double queries, double keys);

// 6 M + 12 L Q S: the above for one token of a decoder of L layers with sequences of S tokens. M: weights of the linear
// layers, the head included and embeddings not. Q = heads * head_dim: `query_size`.
double decoder_flops_per_token(double linear_weights, double layers, double query_size, double sequence_length);

}  // namespace fsdp::models
