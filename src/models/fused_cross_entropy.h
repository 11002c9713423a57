// A language model's head and its loss as one function, which never holds the logits of all tokens.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace fsdp::models {

// mean_cross_entropy(linear(hidden_states, weight), labels), to rounding. hidden_states: [..., width]; weight:
// [classes, width]; labels: [...] int64. Tokens are taken in chunks of `chunk_tokens`, 0: cross_entropy_chunk. The loss
// of each token is formed as there.
//
// Gradients are formed chunk by chunk in the same pass, where they are asked for, and wait in the node for backward,
// which multiplies them with the gradient of the loss: it needs no logits and does not touch the weight. That takes
// memory for the gradients of hidden_states and, in fp32 (fp64 for fp64), of the weight from forward to backward, for
// each forward whose backward is to come. Products of chunks are added in that dtype, so bf16 and fp16 lose nothing to
// the number of chunks, and the loss may be scaled. `retain_graph` takes another weight's gradient during backward.
// create_graph and forward-mode gradients are errors.
at::Tensor fused_cross_entropy(const at::Tensor& hidden_states, const at::Tensor& weight, const at::Tensor& labels,
                               int64_t chunk_tokens = 0);

// A power of two, so large that the logits of a chunk have about as many elements as the hidden states of all tokens,
// or a quarter of the weight's where that is more: fewer rows make slow products of matrices.
int64_t cross_entropy_chunk(int64_t tokens, int64_t width, int64_t classes);

}  // namespace fsdp::models
