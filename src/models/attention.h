// Scaled dot-product attention, as in transformers.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace fsdp::models {

// [batch, sequence, heads * head_dim] -> [batch, heads, sequence, head_dim], a view.
at::Tensor split_heads(const at::Tensor& x, int64_t head_dim);

struct AttentionOptions {
  double dropout = 0.0;              // of the attention weights
  std::optional<double> scale = {};  // of query · key; unset: 1/sqrt(head_dim)
  bool in_full_precision = false;    // compute bf16 and fp16 in fp32 and round at the end
};

// Each position attends to itself and to the positions before it. query: [batch, heads, sequence, head_dim]; key and
// value: the same shape, or fewer heads, each of which is shared by a group of query heads. Returns [batch, sequence,
// heads * head_dim] in the dtype of `value`.
at::Tensor causal_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                            const AttentionOptions& options);

// Each query attends to all keys, with `bias` added to the scaled products: broadcastable to [batch, heads, queries,
// keys], or undefined. query: [batch, heads, queries, head_dim]; key and value: [batch, heads, keys, head_dim]. Returns
// the same shape and dtype as causal_attention.
at::Tensor biased_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                            const at::Tensor& bias, const AttentionOptions& options);

}  // namespace fsdp::models
