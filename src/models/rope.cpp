#include "models/rope.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>

#include <limits>
#include <numbers>
#include <string>

namespace fsdp::models {
namespace {

constexpr double kMaxNumber = std::numeric_limits<double>::max();

// Returns the object that contains the scaling, and its key in this config; null if the config has none.
const nlohmann::json& scaling_object(const ConfigReader& config, std::string& key) {
  key = "rope_scaling";
  if (config.has(key) && !config.at(key).empty()) return config.at(key);
  key = "rope_parameters";
  return config.at(key);
}

RopeType parse_type(const ConfigReader& scaling) {
  const std::string key = scaling.has("rope_type") ? "rope_type" : "type";
  const std::string type = scaling.choice(key, "default", {"default", "linear", "llama3"});
  return type == "linear" ? RopeType::kLinear : type == "llama3" ? RopeType::kLlama3 : RopeType::kDefault;
}

void parse_llama3(const ConfigReader& config, const ConfigReader& scaling, int64_t max_position_embeddings,
                  RopeConfig& rope) {
  rope.low_freq_factor = scaling.number("low_freq_factor", {}, 1e-6, 1e6);
  rope.high_freq_factor = scaling.number("high_freq_factor", {}, 1e-6, 1e6);
  if (rope.high_freq_factor <= rope.low_freq_factor) {
    scaling.refuse("high_freq_factor", c10::str("greater than low_freq_factor, ", rope.low_freq_factor));
  }
  const std::string key = "original_max_position_embeddings";
  rope.original_max_position_embeddings =
      config.has(key) ? config.positive_integer(key) : scaling.positive_integer(key, max_position_embeddings);
}

// Returns 1 / theta^(2i/head_dim) for each pair of elements, before scaling.
at::Tensor base_frequencies(const RopeConfig& rope, int64_t head_dim, const at::TensorOptions& options) {
  const at::Tensor exponents = at::arange(0, head_dim, 2, options) / static_cast<double>(head_dim);
  return at::pow(rope.theta, exponents).reciprocal();
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

at::Tensor inverse_frequencies(const RopeConfig& rope, int64_t head_dim, const at::TensorOptions& options) {
  at::Tensor frequencies = base_frequencies(rope, head_dim, options);
  switch (rope.type) {
    case RopeType::kLinear:
      return frequencies / rope.factor;
    case RopeType::kLlama3:
      return llama3_frequencies(rope, frequencies);
    case RopeType::kDefault:
      break;
  }
  return frequencies;
}

}  // namespace

RopeConfig parse_rope_config(const ConfigReader& config, int64_t max_position_embeddings) {
  RopeConfig rope;
  rope.theta = config.number("rope_theta", rope.theta, 1e-6, kMaxNumber);
  std::string key;
  const nlohmann::json& object = scaling_object(config, key);
  if (object.is_null()) return rope;
  const ConfigReader scaling(object, config.where() + ": " + key);
  rope.theta = scaling.number("rope_theta", rope.theta, 1e-6, kMaxNumber);
  rope.type = parse_type(scaling);
  if (scaling.number("partial_rotary_factor", 1.0, 0.0, 1.0) != 1.0) {
    scaling.refuse("partial_rotary_factor", "1 or absent: partial rotation is not supported");
  }
  if (rope.type != RopeType::kDefault) rope.factor = scaling.number("factor", {}, 1e-6, 1e6);
  if (rope.type == RopeType::kLlama3) parse_llama3(config, scaling, max_position_embeddings, rope);
  return rope;
}

RotaryFactors rotary_factors(const RopeConfig& rope, int64_t head_dim, int64_t sequence,
                             const at::TensorOptions& options) {
  const at::NoGradGuard no_grad;
  const auto fp32 = at::TensorOptions(options.device()).dtype(at::kFloat);
  const at::Tensor angles = at::outer(at::arange(sequence, fp32), inverse_frequencies(rope, head_dim, fp32));
  const at::Tensor cos = angles.cos();
  const at::Tensor sin = angles.sin();
  return {at::cat({cos, cos}, -1).to(options.dtype()), at::cat({-sin, sin}, -1).to(options.dtype())};
}

at::Tensor apply_rotary(const at::Tensor& x, const RotaryFactors& factors) {
  // addcmul is not used: it rounds once, and transformers rounds twice.
  const auto dtype = x.scalar_type();
  return x * factors.cos.to(dtype) + x.roll(x.size(-1) / 2, -1) * factors.sin.to(dtype);
}

}  // namespace fsdp::models
