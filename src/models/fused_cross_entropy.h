// A language model's head and loss as one function that never stores the logits of all tokens.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "models/loss.h"

namespace fsdp::models {

// Returns mean_cross_entropy(scaling.apply(linear(hidden_states, weight)), labels), up to rounding. hidden_states:
// [..., width]; weight: [classes, width]; labels: [...] int64. Tokens are processed in chunks of `chunk_tokens`; 0
// means cross_entropy_chunk(). The loss of each token is computed as in mean_cross_entropy.
//
// Gradients, if required, are computed chunk by chunk in the same pass and stored in the autograd node. Backward
// multiplies them with the gradient of the loss: it needs no logits and does not read the weight. From forward to
// backward, each forward takes memory for the gradient of hidden_states and, in fp32 (fp64 for fp64), for the gradient
// of the weight. The products of chunks are added in that dtype, so bf16 and fp16 lose no precision to the number of
// chunks, and the loss may be scaled. With `retain_graph`, backward takes memory for another gradient of the weight.
// create_graph and forward-mode gradients are errors.
at::Tensor fused_cross_entropy(const at::Tensor& hidden_states, const at::Tensor& weight, const at::Tensor& labels,
                               int64_t chunk_tokens = 0, const LogitScaling& scaling = {});

// Returns a power of two such that the logits of a chunk have about as many elements as the hidden states of all
// tokens, or as a quarter of the weight if that is more: matrix products with fewer rows are slow.
int64_t cross_entropy_chunk(int64_t tokens, int64_t width, int64_t classes);

}  // namespace fsdp::models
