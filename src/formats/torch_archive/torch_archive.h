// Reads archives of torch.save: a zip archive whose data.pkl describes a value, and whose other records are storages.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "formats/common/stored_array.h"
#include "formats/pickle/pickle_reader.h"
#include "formats/torch_archive/zip_archive.h"

namespace fsdp::formats {

// Runs nothing that the archive names; storages are little-endian. Errors begin with `source`. Threads: const functions
// may be called from any number of threads.
class TorchArchive {
 public:
  // Checks the archive (see ZipArchive) and data.pkl. Reads no storage.
  TorchArchive(const InputFile& file, uint64_t offset, uint64_t length, const std::string& source);

  // The value in data.pkl, for parse_array.
  const PickleValue& value() const { return tree_.root(); }
  // Returns that value as JSON, if it is plain data (see formats/pickle/plain_value.h).
  nlohmann::json plain_value() const;

  // Returns the record with an array's storage, after checking its size.
  const ZipRecord& storage(const StoredArray& array) const;
  // Copies elements [begin, end) of the array, in row-major order of their indices, to `to`. Unless `is_verified`, the
  // whole storage is checked first. Memory: none for a row-major array; for any other array, its whole storage and a
  // reordered copy.
  void read(const StoredArray& array, int64_t begin, int64_t end, char* to, bool is_verified) const;

  const ZipArchive& zip() const { return zip_; }

 private:
  std::string read_text(const char* name, uint64_t max_bytes) const;
  void check_format() const;

  ZipArchive zip_;
  std::string prefix_;  // common to all record names
  PickleTree tree_;
};

}  // namespace fsdp::formats
