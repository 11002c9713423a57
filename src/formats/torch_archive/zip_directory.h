// The directory at the end of a zip archive.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "formats/common/input_file.h"

namespace fsdp::formats::zip {

struct Entry {
  std::string name;
  uint16_t flags = 0;
  uint32_t crc32 = 0;
  uint64_t bytes = 0;
  uint64_t header = 0;  // offset in the archive of the header before its data
};

struct Directory {
  uint64_t begin = 0;  // offset in the archive: records lie before it
  std::vector<Entry> entries;
};

// Reads the directory of the archive in bytes [offset, offset + length) of the file, which must contain this range.
// Checks the directory only: it must be at the end of the archive, with as many entries as it states, all uncompressed;
// the positions of records are not checked. Errors begin with `source`.
Directory read_directory(const InputFile& file, uint64_t offset, uint64_t length, const std::string& source);

}  // namespace fsdp::formats::zip
