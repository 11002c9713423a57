// Files for tests and fuzz targets: a temporary folder and hand-made safetensors bytes.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>

#include "support/temporary_folder.h"

namespace fsdp::formats {

using fsdp::testing::TemporaryFolder;

// Returns the bytes of a safetensors file with this header text, valid or not.
inline std::string safetensors_bytes(const std::string& header, const std::string& data) {
  const uint64_t length = header.size();
  std::string bytes(sizeof(length), '\0');
  std::memcpy(bytes.data(), &length, sizeof(length));
  return bytes + header + data;
}

}  // namespace fsdp::formats
