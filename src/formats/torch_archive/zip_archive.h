// A zip archive of uncompressed records, as torch.save writes it, at any place in a file.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "formats/common/input_file.h"

namespace fsdp::formats {

struct ZipRecord {
  std::string name;
  uint64_t offset = 0;  // of its data in the file
  uint64_t bytes = 0;
  uint32_t crc32 = 0;
};

// An archive is treated as if an attacker had written it. Errors begin with `source` or the file's path, and name the
// record. Threads: const functions may be called from any number of threads.
class ZipArchive {
 public:
  // The archive is bytes [offset, offset + length) of the file, which must outlive it. Reads and checks the directory
  // and each record's header: no name occurs twice, and records are stored uncompressed, lie within the archive and
  // share no bytes. Compressed, encrypted and split archives, and comments, are errors.
  ZipArchive(const InputFile& file, uint64_t offset, uint64_t length, std::string source);

  const std::string& source() const { return source_; }
  const InputFile& file() const { return file_; }
  const std::vector<ZipRecord>& records() const { return records_; }
  // Returns null if there is no such record.
  const ZipRecord* find(std::string_view name) const;

  // Returns a whole record of at most `max_bytes`, checked against its CRC-32.
  std::string read(const ZipRecord& record, uint64_t max_bytes) const;
  // Reads the record in blocks, and throws if its CRC-32 is wrong.
  void verify(const ZipRecord& record) const;

 private:
  void check_crc(const ZipRecord& record, uint32_t crc32) const;

  const InputFile& file_;
  std::string source_;
  std::vector<ZipRecord> records_;
};

}  // namespace fsdp::formats
