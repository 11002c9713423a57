#include "models/alibi.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/pow.h>

#include <bit>
#include <limits>

namespace fsdp::models {
namespace {

constexpr double kLargestExponent = 8.0;  // MPT's alibi_bias_max

// The slopes of all heads.
at::Tensor slopes(int64_t heads, const at::TensorOptions& wide) {
  const auto power = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(heads)));
  const at::Tensor exponents = at::arange(1, power + 1, wide) * (-kLargestExponent / static_cast<double>(power));
  const at::Tensor all = at::pow(2.0, exponents);
  if (power == heads) return all;
  return at::cat({all.slice(0, 1, power, 2), all.slice(0, 0, power, 2)}).narrow(0, 0, heads);
}

}  // namespace

at::Tensor alibi_bias(const AlibiHeads& heads, int64_t length, const at::TensorOptions& options) {
  const at::ScalarType dtype = options.dtype().toScalarType();
  const at::TensorOptions wide = options.dtype(dtype == at::kDouble ? at::kDouble : at::kFloat);
  const at::Tensor positions = at::arange(length, wide);
  const at::Tensor distances = positions.unsqueeze(0) - positions.unsqueeze(1);  // key - query
  const at::Tensor own = slopes(heads.all, wide).narrow(0, heads.begin, heads.count);
  at::Tensor bias = own.view({heads.count, 1, 1}) * distances;
  bias.masked_fill_(distances.gt(0), -std::numeric_limits<double>::infinity());
  return bias.to(dtype).unsqueeze(0);
}

}  // namespace fsdp::models
