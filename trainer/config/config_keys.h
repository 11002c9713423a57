// The sections of the table of config keys (config_schema.h), each with its keys in the order of docs/config.md.
#pragma once

#include <limits>
#include <vector>

#include "config/config_schema.h"

namespace fsdp::trainer {

// Each function writes the section name with every key, like a running heading, so that a table reads like its
// documentation.
std::vector<ConfigKey> model_and_data_keys();
std::vector<ConfigKey> optimization_keys();
std::vector<ConfigKey> precision_keys();
std::vector<ConfigKey> device_keys();
std::vector<ConfigKey> sharding_keys();
std::vector<ConfigKey> parallelism_keys();
std::vector<ConfigKey> checkpoint_keys();
std::vector<ConfigKey> divergence_keys();
std::vector<ConfigKey> output_keys();

inline constexpr Range kPositive{.lower = 0, .lower_open = true};
inline constexpr Range kAtLeastZero{.lower = 0};
inline constexpr Range kAtLeastOne{.lower = 1};
// The normal positive numbers of fp32.
inline constexpr Range kScale{.lower = std::numeric_limits<float>::min(), .upper = std::numeric_limits<float>::max()};
inline constexpr Range kBeta{.lower = 0, .upper = 1, .upper_open = true};

}  // namespace fsdp::trainer
