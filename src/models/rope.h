// Rotary position embeddings.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "models/config_reader.h"

namespace fsdp::models {

enum class RopeType : uint8_t { kDefault, kLinear, kLlama3 };

struct RopeConfig {
  RopeType type = RopeType::kDefault;
  double theta = 10000.0;
  double factor = 1.0;            // kLinear, kLlama3
  double low_freq_factor = 1.0;   // kLlama3
  double high_freq_factor = 4.0;  // kLlama3
  // kLlama3: the context length that the model was first trained with.
  int64_t original_max_position_embeddings = 0;
};

// Reads both spellings: "rope_theta" and "rope_scaling" (older), and "rope_parameters" (newer). If they disagree,
// precedence is as in transformers: a rope_scaling that is not empty over rope_parameters, a rope_theta inside over one
// at the top level. Types other than default, linear and llama3 are an error.
RopeConfig parse_rope_config(const ConfigReader& config, int64_t max_position_embeddings);

// The factors that rotate queries and keys: cos and signed sin, [sequence, head_dim].
struct RotaryFactors {
  at::Tensor cos;
  at::Tensor sin;  // negated in the first half of the last dimension
};

// Returns the factors for positions 0 … sequence-1, computed in fp32 and then converted to the dtype and device of
// `options`.
RotaryFactors rotary_factors(const RopeConfig& rope, int64_t head_dim, int64_t sequence,
                             const at::TensorOptions& options);

// Rotates x [batch, heads, sequence, head_dim]. Element i is paired with element i + head_dim/2, as in Hugging Face
// checkpoints.
at::Tensor apply_rotary(const at::Tensor& x, const RotaryFactors& factors);

}  // namespace fsdp::models
