// The header of a safetensors file, parsed and validated.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "formats/common/tensor_info.h"

namespace fsdp::formats {

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the reference library's limit

struct SafetensorsHeader {
  struct Entry {
    TensorInfo info;
    uint64_t begin = 0;  // byte offsets of the data, relative to the end of the header
    uint64_t end = 0;
  };
  std::vector<Entry> entries;  // by offset; they cover the data section without gap or overlap
  std::map<std::string, std::string> metadata;
  uint64_t data_start = 0;  // offset of the data section in the file
};

// Parses the header of a file with these contents and reads only the header's bytes. Errors begin with `source`.
SafetensorsHeader parse_safetensors_header(std::string_view file, const std::string& source);

}  // namespace fsdp::formats
