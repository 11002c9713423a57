// The directory at the end of a zip archive.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/input_file.h"

namespace fsdp::checkpoint::zip {

struct Entry {
  std::string name;
  uint16_t flags = 0;
  uint32_t crc32 = 0;
  uint64_t bytes = 0;
  uint64_t header = 0;  // offset in the archive of the header in front of its data
};

struct Directory {
  uint64_t begin = 0;  // offset in the archive: records lie before it
  std::vector<Entry> entries;
};

// Of the archive in bytes [offset, offset + length) of the file, which must lie in it. Checked by itself: that it is
// the end of the archive, with as many entries as it says, each stored as it is; not where records lie. Errors begin
// with `source`.
Directory read_directory(const InputFile& file, uint64_t offset, uint64_t length, const std::string& source);

}  // namespace fsdp::checkpoint::zip
