// Reads what torch.save wrote: a zip archive whose data.pkl describes a value, and whose other records are storages.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "checkpoint/pickle_reader.h"
#include "checkpoint/stored_array.h"
#include "checkpoint/zip_archive.h"

namespace fsdp::checkpoint {

// Nothing that the archive names is run; storages are little-endian. Errors begin with `source`. Threads: const
// functions may be called from any number of threads.
class TorchArchive {
 public:
  // Checks the archive (see ZipArchive) and data.pkl, and reads no storage.
  TorchArchive(const InputFile& file, uint64_t offset, uint64_t length, const std::string& source);

  // What data.pkl holds, for parse_array.
  const PickleValue& value() const { return tree_.root(); }
  // The same as JSON, where it is plain data (see plain_value.h).
  nlohmann::json plain_value() const;

  // The record with an array's storage, whose size is checked.
  const ZipRecord& storage(const StoredArray& array) const;
  // Copies elements [begin, end) of the array, in the order of their indices, to `to`. The storage is checked first,
  // all of it, unless `is_verified`. Memory: what an array that does not lie in the order of its indices needs as a
  // whole.
  void read(const StoredArray& array, int64_t begin, int64_t end, char* to, bool is_verified) const;

  const ZipArchive& zip() const { return zip_; }

 private:
  std::string read_text(const char* name, uint64_t max_bytes) const;
  void check_format() const;

  ZipArchive zip_;
  std::string prefix_;  // of all names
  PickleTree tree_;
};

}  // namespace fsdp::checkpoint
