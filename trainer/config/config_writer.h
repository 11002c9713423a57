// Writes a config for people to read and for the program to read again.
#pragma once

#include <string>

#include "config/config.h"

namespace fsdp::trainer {

// Writes all keys with their values to `path`. The file appears complete or not at all. Errors name the path.
void write_config(const Config& config, const std::string& path);

}  // namespace fsdp::trainer
