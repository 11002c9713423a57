// Keys that contradict one another, or the number of ranks.
#pragma once

#include <cstdint>

#include "config/config.h"

namespace fsdp::trainer {

// Throws ConfigError, naming the keys that do not go together, in quotes. Where they were given is the caller's to say.
void check_combinations(const Config& config);

// What only shows once the number of ranks is known. Throws ConfigError, naming the key and what is accepted.
void check_for_world_size(const Config& config, int64_t world_size);

}  // namespace fsdp::trainer
