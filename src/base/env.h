// Environment variables, read strictly.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace fsdp::base {

// Returns the value of an environment variable, or nullopt if it is not set or empty.
std::optional<std::string> env_string(const std::string& name);

// Returns the value as a decimal number from `min` to `max`, or nullopt if it is not set or empty. Throws for any other
// value, with an error that names the variable, its value and the range.
std::optional<int64_t> env_int(const std::string& name, int64_t min, int64_t max);

}  // namespace fsdp::base
