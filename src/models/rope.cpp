#include "models/rope.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace fsdp::models {
namespace {

// Returns theta^(2i/rotary_dim) for each pair of elements, before scaling: the reciprocals of the frequencies.
at::Tensor periods(const RopeConfig& rope, const at::TensorOptions& options) {
  const at::Tensor exponents = at::arange(0, rope.rotary_dim, 2, options) / static_cast<double>(rope.rotary_dim);
  return at::pow(rope.theta, exponents);
}

// Llama 3.1 scaling: long wavelengths are divided by `factor`, short ones are kept, and those between are interpolated.
at::Tensor llama3_frequencies(const RopeConfig& rope, const at::Tensor& frequencies) {
  const auto context = static_cast<double>(rope.original_max_position_embeddings);
  const at::Tensor wavelengths = frequencies.reciprocal() * (2 * std::numbers::pi);
  const at::Tensor is_long = wavelengths > context / rope.low_freq_factor;
  const at::Tensor is_short = wavelengths < context / rope.high_freq_factor;
  const at::Tensor smooth =
      (wavelengths.reciprocal() * context - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
  const at::Tensor interpolated = (1 - smooth) * frequencies / rope.factor + smooth * frequencies;
  return at::where(is_long, frequencies / rope.factor, at::where(is_short, frequencies, interpolated));
}

// YaRN, section 3.2: pairs that turn often within the original context are kept, those that turn seldom are divided by
// `factor`, and those between lie on a ramp over the index of the pair.
at::Tensor yarn_frequencies(const RopeConfig& rope, const at::Tensor& all_periods) {
  const auto dim = static_cast<double>(rope.rotary_dim);
  const auto index_of = [&](double rotations) {
    const auto context = static_cast<double>(rope.original_max_position_embeddings);
    return dim * std::log(context / (rotations * 2 * std::numbers::pi)) / (2 * std::log(rope.theta));
  };
  double low = index_of(rope.beta_fast), high = index_of(rope.beta_slow);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1);
  if (low == high) high += 0.001;
  const at::Tensor ramp = ((at::arange(rope.rotary_dim / 2, all_periods.options()) - low) / (high - low)).clamp(0, 1);
  const at::Tensor kept = 1 - ramp;
  return (all_periods * rope.factor).reciprocal() * (1 - kept) + all_periods.reciprocal() * kept;
}

at::Tensor longrope_frequencies(const RopeConfig& rope, int64_t sequence, const at::Tensor& all_periods) {
  const bool is_long = sequence > rope.original_max_position_embeddings;
  const at::Tensor divisors = at::tensor(is_long ? rope.long_factor : rope.short_factor, at::kFloat);
  return (divisors.to(all_periods.options()) * all_periods).reciprocal();
}

at::Tensor frequencies_of(const RopeConfig& rope, int64_t sequence, const at::TensorOptions& options) {
  const at::Tensor all_periods = periods(rope, options);
  switch (rope.type) {
    case RopeType::kLinear:
      return all_periods.reciprocal() / rope.factor;
    case RopeType::kLlama3:
      return llama3_frequencies(rope, all_periods.reciprocal());
    case RopeType::kYarn:
      return yarn_frequencies(rope, all_periods);
    case RopeType::kLongrope:
      return longrope_frequencies(rope, sequence, all_periods);
    case RopeType::kDefault:
      break;
  }
  return all_periods.reciprocal();
}

// Returns `first` and `second`, the values of the elements of each pair, in the order of the elements.
at::Tensor by_element(const at::Tensor& first, const at::Tensor& second, RopePairs pairs) {
  return pairs == RopePairs::kHalves ? at::cat({first, second}, -1) : at::stack({first, second}, -1).flatten(-2);
}

// Returns for each element the other one of its pair.
at::Tensor partners(const at::Tensor& x, RopePairs pairs) {
  if (pairs == RopePairs::kHalves) return x.roll(x.size(-1) / 2, -1);
  return x.unflatten(-1, {-1, 2}).flip(-1).flatten(-2);
}

at::Tensor rotate(const at::Tensor& x, const RotaryFactors& factors) {
  const c10::ScalarType dtype = x.scalar_type();
  const auto cast = [&](const at::Tensor& factor) { return factors.keeps_fp32 ? factor : factor.to(dtype); };
  // addcmul is not used: it rounds once, and transformers rounds twice.
  const at::Tensor own = x * cast(factors.cos);
  const at::Tensor others = partners(x, factors.pairs);
  return (own + others * cast(factors.sin)).to(dtype);
}

}  // namespace

RotaryFactors rotary_factors(const RopeConfig& rope, int64_t sequence, const at::TensorOptions& options) {
  const at::NoGradGuard no_grad;
  const auto fp32 = at::TensorOptions(options.device()).dtype(at::kFloat);
  const at::Tensor positions = at::arange(sequence, fp32);
  const at::Tensor angles = at::outer(positions, frequencies_of(rope, sequence, fp32));
  at::Tensor cos = angles.cos(), sin = angles.sin();
  if (rope.attention_factor != 1.0) {
    cos.mul_(rope.attention_factor);
    sin.mul_(rope.attention_factor);
  }
  const auto dtype = rope.keeps_fp32 ? at::kFloat : c10::typeMetaToScalarType(options.dtype());
  return {by_element(cos, cos, rope.pairs).to(dtype), by_element(-sin, sin, rope.pairs).to(dtype), rope.pairs,
          rope.keeps_fp32};
}

RotaryFactors at_positions(const RotaryFactors& factors, const at::Tensor& positions) {
  const at::NoGradGuard no_grad;
  const auto selected = [&](const at::Tensor& factor) {
    return factor.index_select(0, positions.flatten()).view({positions.size(0), 1, positions.size(1), -1});
  };
  return {selected(factors.cos), selected(factors.sin), factors.pairs, factors.keeps_fp32};
}

at::Tensor apply_rotary(const at::Tensor& x, const RotaryFactors& factors) {
  const int64_t rotary_dim = factors.cos.size(-1), rest = x.size(-1) - rotary_dim;
  if (rest == 0) return rotate(x, factors);
  return at::cat({rotate(x.narrow(-1, 0, rotary_dim), factors), x.narrow(-1, rotary_dim, rest)}, -1);
}

}  // namespace fsdp::models
