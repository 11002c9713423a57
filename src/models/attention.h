// Scaled dot-product attention, as in transformers.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "models/documents.h"

namespace fsdp::models {

// [batch, sequence, heads * head_dim] -> [batch, heads, sequence, head_dim], a view.
at::Tensor split_heads(const at::Tensor& x, int64_t head_dim);

struct AttentionOptions {
  double dropout = 0.0;              // of the attention weights
  std::optional<double> scale = {};  // of query · key; unset: 1/sqrt(head_dim). causal_attention: greater than 0
  bool in_full_precision = false;    // compute bf16 and fp16 in fp32 and round at the end
  // causal_attention only. A position attends to the last `window` positions, itself included; unset: to all before it.
  std::optional<int64_t> window = {};
  // causal_attention only. Scaled products s become softcap * tanh(s / softcap), as in Gemma 2. No fused kernel
  // computes this, so scores are kept for backward.
  std::optional<double> softcap = {};
};

// Each position attends to itself and to the positions before it. query: [batch, heads, sequence, head_dim]; key and
// value: the same shape, or fewer heads, each of which is shared by a group of query heads. Returns [batch, sequence,
// heads * head_dim] in the dtype of `value`.
//
// With a window shorter than the sequence, queries are processed in blocks, each with the keys that it can reach, so
// that time and memory grow with sequence * window. With a softcap, blocks of queries leave out the keys after them.
// `documents`: a position attends to those of its document only. Each is computed by itself, so that time and memory
// grow with the sum of the squares of their lengths.
at::Tensor causal_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                            const AttentionOptions& options, const Documents& documents = {});

// Returns the number of keys that each query of a sequence counts for, masked or not: the length of the sequence, or of
// the window if that is shorter.
int64_t attended_keys(int64_t sequence, std::optional<int64_t> window);

// Each query attends to all keys, with `bias` added to the scaled products: broadcastable to [batch, heads, queries,
// keys], or undefined. query: [batch, heads, queries, head_dim]; key and value: [batch, heads, keys, head_dim]. Returns
// the same shape and dtype as causal_attention.
//
// `documents`: a query attends to the keys of its document only, and the bias, [heads, longest document, longest
// document], is that of positions counted from the beginning of the document.
at::Tensor biased_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                            const at::Tensor& bias, const AttentionOptions& options, const Documents& documents = {});

}  // namespace fsdp::models
