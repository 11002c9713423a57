// Checks for keys that contradict one another or the number of ranks.
#pragma once

#include <cstdint>

#include "config/config.h"

namespace fsdp::trainer {

// Throws a ConfigError that names, in quotes, the keys that contradict one another. The caller adds where these keys
// were given.
void check_combinations(const Config& config);

// Checks the keys that depend on the number of ranks. Throws a ConfigError that names the key and the accepted values.
void check_for_world_size(const Config& config, int64_t world_size);

}  // namespace fsdp::trainer
