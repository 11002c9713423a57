// Pickles for tests. For hand-made pickles, each function of `pickled` returns the opcodes that build one value.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>

#include "formats/pickle/pickle_writer.h"

namespace fsdp::formats {

inline std::string from_hex(const std::string& hex) {
  std::string bytes;
  for (size_t i = 0; i < hex.size(); i += 2) bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  return bytes;
}

namespace pickled {

inline std::string little_endian(uint64_t value, size_t width) {
  std::string bytes(width, '\0');
  std::memcpy(bytes.data(), &value, width);
  return bytes;
}

// Returns the opcodes by which pickles name a class since protocol 4.
inline std::string stack_name(const std::string& module, const std::string& name) {
  return text(module) + text(name) + "\x93";
}

}  // namespace pickled
}  // namespace fsdp::formats
