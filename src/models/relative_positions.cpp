#include "models/relative_positions.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/where.h>

#include <cmath>

namespace fsdp::models {

at::Tensor relative_position_buckets(const RelativeBuckets& buckets, int64_t length, at::Device device) {
  const at::Tensor positions = at::arange(length, at::TensorOptions().dtype(at::kLong).device(device));
  const at::Tensor relative = positions.unsqueeze(0) - positions.unsqueeze(1);
  const at::Tensor distance = buckets.bidirectional ? relative.abs() : (-relative).clamp_min(0);
  const int64_t count = buckets.bidirectional ? buckets.count / 2 : buckets.count;
  const int64_t exact = count / 2;
  const double octaves = std::log(static_cast<double>(buckets.max_distance) / static_cast<double>(exact));
  // Computed in fp32, in the order of transformers, so that no distance is rounded to another bucket.
  const at::Tensor logarithm = (distance.clamp_min(exact).to(at::kFloat) / exact).log();
  const at::Tensor large = (exact + (logarithm / octaves * (count - exact)).to(at::kLong)).clamp_max(count - 1);
  const at::Tensor bucket = at::where(distance < exact, distance, large);
  return buckets.bidirectional ? bucket + (relative > 0).to(at::kLong) * count : bucket;
}

}  // namespace fsdp::models
