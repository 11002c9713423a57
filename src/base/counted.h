// A number with the noun that it counts.
#pragma once

#include <cstdint>
#include <string>

namespace fsdp::base {

// Returns a text such as "1 tensor" or "3 tensors". `plural`: null adds an "s" to the noun.
inline std::string counted(int64_t number, const char* noun, const char* plural = nullptr) {
  std::string text = std::to_string(number) + " ";
  if (number == 1) return text + noun;
  return text + (plural == nullptr ? std::string(noun) + "s" : plural);
}

}  // namespace fsdp::base
