// Environment variables, read strictly.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace fsdp {

// The value of an environment variable; nothing if it is not set or empty.
std::optional<std::string> env_string(const std::string& name);

// The value as a decimal number from `min` to `max`; nothing if it is not set or empty. Anything else is an
// error that names variable, value and range.
std::optional<int64_t> env_int(const std::string& name, int64_t min, int64_t max);

}  // namespace fsdp
