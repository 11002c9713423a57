// A number with the noun that it counts.
#pragma once

#include <cstdint>
#include <string>

namespace fsdp::base {

// Returns a text such as "1 tensor" or "3 tensors", for nouns whose plural ends in "s".
inline std::string counted(int64_t number, const char* noun) {
  return std::to_string(number) + " " + noun + (number == 1 ? "" : "s");
}

}  // namespace fsdp::base
