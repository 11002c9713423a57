// Pickles for tests. Hand-made ones: each function of `pickled` gives the opcodes that make one value.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

namespace fsdp::checkpoint {

inline std::string from_hex(const std::string& hex) {
  std::string bytes;
  for (size_t i = 0; i < hex.size(); i += 2) {
    bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  }
  return bytes;
}

namespace pickled {

inline std::string little_endian(uint64_t value, size_t width) {
  std::string bytes(width, '\0');
  std::memcpy(bytes.data(), &value, width);
  return bytes;
}
inline std::string file(const std::string& opcodes) { return "\x80\x04" + opcodes + "."; }
inline std::string none() { return "N"; }
inline std::string integer(int64_t value) { return "\x8a\x08" + little_endian(static_cast<uint64_t>(value), 8); }
inline std::string text(const std::string& value) { return "X" + little_endian(value.size(), 4) + value; }
inline std::string name(const std::string& module, const std::string& name) {
  return text(module) + text(name) + "\x93";
}

inline std::string join(const std::vector<std::string>& values) {
  std::string joined;
  for (const std::string& value : values) {
    joined += value;
  }
  return joined;
}
inline std::string tuple(const std::vector<std::string>& values) { return "(" + join(values) + "t"; }
inline std::string list(const std::vector<std::string>& values) { return "](" + join(values) + "e"; }

using Items = std::vector<std::pair<std::string, std::string>>;  // opcodes of keys and values
inline std::string dict(const Items& items) {
  std::string joined;
  for (const auto& [key, value] : items) {
    joined += key + value;
  }
  return "}(" + joined + "u";
}

inline std::string call(const std::string& callable, const std::vector<std::string>& arguments) {
  return callable + tuple(arguments) + "R";
}
inline std::string object(const std::string& type, const std::string& state) { return type + ")\x81" + state + "b"; }

}  // namespace pickled
}  // namespace fsdp::checkpoint
