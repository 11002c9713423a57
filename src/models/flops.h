// FLOPs of forward and backward: a multiply and an add in forward, twice that in backward, for each product.
#pragma once

namespace fsdp::models {

// Of linear layers with this many weights, for this many tokens; of convolutions, for this many places of the output.
inline double linear_flops(double weights, double tokens) { return 6 * weights * tokens; }

// Of one layer's products of queries with keys, and of what they are weighted with and values, each `size` = heads *
// head_dim elements wide. All positions count, masked or not.
inline double attention_flops(double size, double queries, double keys) { return 12 * size * queries * keys; }

}  // namespace fsdp::models
