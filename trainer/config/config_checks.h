// Keys that contradict one another, or the number of ranks.
#pragma once

#include <cstdint>
#include <string>

#include "config/config.h"

namespace fsdp::trainer {

// Throws ConfigError, naming `path` and the keys that do not go together.
void check_combinations(const std::string& path, const Config& config);

// What only shows once the number of ranks is known. Throws ConfigError, naming the key and what is accepted.
void check_for_world_size(const Config& config, int64_t world_size);

}  // namespace fsdp::trainer
