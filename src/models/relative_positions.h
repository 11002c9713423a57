// T5's relative positions: distances between tokens, sorted into buckets (Raffel et al., "Exploring the Limits of
// Transfer Learning with a Unified Text-to-Text Transformer", 2020, section 2.1).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace fsdp::models {

struct RelativeBuckets {
  int64_t count = 32;  // at least 4
  // Distances larger than this share a bucket. Must be more than count / 2.
  int64_t max_distance = 128;
  bool bidirectional = true;  // half the buckets are for keys after the query; if false those are in bucket 0
};

// Returns [length, length] int64: the bucket, from 0 to count - 1, of query i and key j. In each direction, half the
// buckets contain one distance each, and the others contain increasingly long ranges of distances.
at::Tensor relative_position_buckets(const RelativeBuckets& buckets, int64_t length, at::Device device);

}  // namespace fsdp::models
