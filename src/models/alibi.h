// Attention with linear biases (ALiBi; Press et al., "Train Short, Test Long", 2022). Positions are not encoded.
// Instead each score is reduced by the distance of its key times a slope, which differs from head to head.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace fsdp::models {

// The heads [begin, begin + count) of a model with `all` heads, whose slopes depend on that number.
struct AlibiHeads {
  int64_t all = 0;
  int64_t begin = 0;
  int64_t count = 0;
};

// Returns the bias of a causal attention's scores, for biased_attention: [1, count, length, length], for query i and
// key j the head's slope times j - i, and -infinity for keys after the query. Has the dtype and device of `options`;
// computed in fp32, or in fp64 for fp64.
//
// Slopes are those of MPT: for a power of two of heads, 2^(-8 h / all) for h = 1, 2, …, all. For other numbers, those
// of the next power of two: first every second slope, beginning with the second, then the others.
at::Tensor alibi_bias(const AlibiHeads& heads, int64_t length, const at::TensorOptions& options);

}  // namespace fsdp::models
