// Hand-made safetensors bytes, for tests and fuzz targets.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>

namespace fsdp::formats {

// Returns the bytes of a safetensors file with this header text, valid or not.
inline std::string safetensors_bytes(const std::string& header, const std::string& data) {
  const uint64_t length = header.size();
  std::string bytes(sizeof(length), '\0');
  std::memcpy(bytes.data(), &length, sizeof(length));
  return bytes + header + data;
}

}  // namespace fsdp::formats
