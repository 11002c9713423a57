// Rotary position embeddings (Su et al., RoFormer, 2021) and their extensions to longer contexts, as in transformers.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "models/config_reader.h"

namespace fsdp::models {

// How frequencies are scaled. kYarn: Peng et al., YaRN, 2023. kLongrope: Ding et al., LongRoPE, 2024.
enum class RopeType : uint8_t { kDefault, kLinear, kLlama3, kYarn, kLongrope };

// Which elements of a head are rotated together, of the `rotary_dim` that are rotated at all.
enum class RopePairs : uint8_t {
  kHalves,      // element i with element i + rotary_dim/2
  kNeighbours,  // element 2i with element 2i + 1
};

struct RopeConfig {
  RopeType type = RopeType::kDefault;
  RopePairs pairs = RopePairs::kHalves;
  int64_t rotary_dim = 0;   // the first elements of each head that are rotated; even
  bool keeps_fp32 = false;  // rotate with fp32 factors and round once, as OLMo 3 does
  double theta = 10000.0;
  double factor = 1.0;  // of all types but kDefault
  // kLlama3, kYarn, kLongrope: the context length that the model was first trained with.
  int64_t original_max_position_embeddings = 0;
  double attention_factor = 1.0;                  // kYarn, kLongrope: multiplies cos and sin
  double low_freq_factor = 1.0;                   // kLlama3
  double high_freq_factor = 4.0;                  // kLlama3
  double beta_fast = 32.0, beta_slow = 1.0;       // kYarn: rotations over the original context, above and below which
                                                  // frequencies are kept and divided
  bool truncate = true;                           // kYarn: round the borders of the ramp to whole pairs
  std::vector<double> short_factor, long_factor;  // kLongrope: a divisor for each pair, for sequences up to the
                                                  // original length and for longer ones
};

// What a family of models says about its rotary embedding outside config.json.
struct RopeFamily {
  double theta = 10000.0;
  double partial_rotary_factor = 1.0;
  bool may_be_partial = false;       // its config.json may say partial_rotary_factor
  bool knows_only_longrope = false;  // Phi-3: default and longrope, which it also calls su and yarn
  int64_t original_max_position_embeddings =
      0;  // not 0: the default, which wins over the scaling object's, as in Phi-3
  RopePairs pairs = RopePairs::kHalves;
};

// Reads both spellings: "rope_theta" and "rope_scaling" (older), and "rope_parameters" (newer). If they disagree,
// precedence is as in transformers: a rope_scaling that is not empty over rope_parameters, a rope_theta inside over one
// at the top level. Types other than default, linear, llama3, yarn and longrope are an error.
RopeConfig parse_rope_config(const ConfigReader& config, int64_t head_dim, int64_t max_position_embeddings,
                             const RopeFamily& family = {});

// Reads the rotary embedding of one of a config's layer types: the object under `layer_type` in rope_parameters. If
// there is none, `theta_key` at the top level (or `theta`), and, with `takes_scaling`, rope_scaling.
RopeConfig parse_rope_of_layer_type(const ConfigReader& config, const std::string& layer_type, int64_t head_dim,
                                    int64_t max_position_embeddings, const std::string& theta_key, double theta,
                                    bool takes_scaling);

// The factors that rotate queries and keys: cos and signed sin, [sequence, rotary_dim], or [batch, 1, sequence,
// rotary_dim].
struct RotaryFactors {
  at::Tensor cos;
  at::Tensor sin;  // negated for the first element of each pair
  RopePairs pairs = RopePairs::kHalves;
  bool keeps_fp32 = false;  // otherwise they are cast to the dtype of what they rotate
};

// Returns the factors for positions 0 … sequence-1, computed in fp32 and then converted to the dtype and device of
// `options`, or kept in fp32 if the config says so.
RotaryFactors rotary_factors(const RopeConfig& rope, int64_t sequence, const at::TensorOptions& options);

// Returns the factors for the tokens at these positions, [batch, sequence] int64.
RotaryFactors at_positions(const RotaryFactors& factors, const at::Tensor& positions);

// Rotates the first elements of x [batch, heads, sequence, head_dim], as many as the factors have.
at::Tensor apply_rotary(const at::Tensor& x, const RotaryFactors& factors);

}  // namespace fsdp::models
