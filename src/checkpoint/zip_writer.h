// Writes zip archives of uncompressed records, such as torch.load reads, into a part of a file.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/output_file.h"

namespace fsdp::checkpoint {

// Records' data begin at multiples of 64 bytes from the archive's beginning, as torch.save's do. Used by one thread.
class ZipWriter {
 public:
  // The archive begins at `offset` of the file, which must outlive it, and ends where finish() says. Records and the
  // whole archive must have less than 4 GiB; an error otherwise.
  ZipWriter(OutputFile& file, uint64_t offset) : file_(file), begin_(offset), end_(offset) {}

  // A record in pieces, until the next one is begun.
  void begin(const std::string& name);
  void append(std::string_view bytes);
  // A record at once.
  void add(const std::string& name, std::string_view bytes);

  // Writes the directory; returns the offset of the archive's end in the file.
  uint64_t finish();

 private:
  struct Record {
    std::string name;
    uint32_t header = 0;  // offset in the archive
    uint32_t data = 0;
    uint32_t bytes = 0;
    uint32_t crc32 = 0;
  };
  void end_record();
  uint32_t place(uint64_t offset) const;

  OutputFile& file_;
  uint64_t begin_;
  uint64_t end_;  // of what is written
  bool is_open_ = false;
  std::vector<Record> records_;
};

}  // namespace fsdp::checkpoint
