#include "base/env.h"

#include <c10/util/Exception.h>

#include <charconv>
#include <cstdlib>
#include <system_error>

namespace fsdp::base {

std::optional<std::string> env_string(const std::string& name) {
  const char* text = std::getenv(name.c_str());
  if (text == nullptr || *text == '\0') return std::nullopt;
  return text;
}

std::optional<int64_t> env_int(const std::string& name, int64_t min, int64_t max) {
  const auto text = env_string(name);
  if (!text) return std::nullopt;
  int64_t value = 0;
  const char* end = text->data() + text->size();
  const auto [stop, error] = std::from_chars(text->data(), end, value);
  TORCH_CHECK(error == std::errc() && stop == end && value >= min && value <= max, "the environment variable ", name,
              " is '", *text, "'; expected a number from ", min, " to ", max);
  return value;
}

}  // namespace fsdp::base
