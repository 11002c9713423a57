// FLOPs of forward and backward: each product counts one multiply and one add in forward, and twice that in backward.
#pragma once

namespace fsdp::models {

// For linear layers with this many weights and this many tokens; for convolutions, tokens are output positions.
inline double linear_flops(double weights, double tokens) { return 6 * weights * tokens; }

// For one attention layer: the products of queries with keys, and of attention weights with values, each `size` = heads
// * head_dim elements wide. All positions count, masked or not.
inline double attention_flops(double size, double queries, double keys) { return 12 * size * queries * keys; }

}  // namespace fsdp::models
