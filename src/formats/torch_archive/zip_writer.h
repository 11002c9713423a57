// Writes zip archives of uncompressed records, as torch.load reads them, into a part of a file.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "formats/common/output_file.h"

namespace fsdp::formats {

// The data of records begin at multiples of 64 bytes from the archive's beginning, as in torch.save. Used by one
// thread.
class ZipWriter {
 public:
  // The archive begins at `offset` of the file, which must outlive it, and ends at the offset that finish() returns.
  // Throws if a record or the whole archive has 4 GiB or more.
  ZipWriter(OutputFile& file, uint64_t offset) : file_(file), begin_(offset), end_(offset), pending_begin_(offset) {}

  // Writes a record in pieces, until the next record begins. Small pieces reach the file together, at the latest with
  // finish().
  void begin(const std::string& name);
  void append(std::string_view bytes);
  // Writes a whole record.
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
  void put(uint64_t offset, std::string_view bytes);
  void write_pending();
  uint32_t place(uint64_t offset) const;

  OutputFile& file_;
  uint64_t begin_;
  uint64_t end_;            // of the records
  uint64_t pending_begin_;  // offset in the file of pending_; everything before it has been written
  std::string pending_;
  bool is_open_ = false;
  std::vector<Record> records_;
};

}  // namespace fsdp::formats
