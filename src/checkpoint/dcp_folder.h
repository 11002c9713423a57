// Reads a checkpoint of torch.distributed.checkpoint: its .metadata, and the .distcp files that it lists.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "checkpoint/dcp_metadata.h"
#include "checkpoint/input_file.h"
#include "checkpoint/torch_archive.h"

namespace fsdp::checkpoint {

// No code that the files name is run, and nothing is read outside of the folder. What is read is checked: each
// archive's form, and the CRC-32 of what it stores, once, when it is first read from. Errors name the file, the tensor
// or key, and the chunk. Threads: const functions may be called from any number of threads.
class DcpFolder {
 public:
  // Reads and checks .metadata (see parse_dcp_metadata), and that its files are there and long enough.
  explicit DcpFolder(std::filesystem::path path);

  const std::filesystem::path& path() const { return path_; }
  const DcpMetadata& metadata() const { return metadata_; }
  // An error that names the tensor when there is none of this name.
  const DcpTensor& tensor(const std::string& name) const;

  // Copies elements [begin, end) of the tensor, in the order of their indices (row-major), into `out`: 1-D, contiguous,
  // end - begin elements of the stored dtype, on any device. Reads only chunks that hold some of them, of these what
  // is wanted (and, the first time, what their checksums need). Memory: at most twice that of `out`, and whole chunks
  // where a chunk does not lie in the order of its indices. After an error `out` holds anything.
  void read(const std::string& name, int64_t begin, int64_t end, at::Tensor out) const;

  // The value of an entry that is no tensor, where it is plain data (see plain_value.h).
  nlohmann::json value(const std::string& name) const;

  // Reads a chunk, or a value as far as it can be read without running code, and throws when it is not as .metadata and
  // the archive's checksums say.
  void verify(const DcpTensor& tensor, const DcpChunk& chunk) const;
  void verify_value(const std::string& name) const;

 private:
  const InputFile& file(const std::string& name) const;
  const DcpLocation& location(const std::string& name) const;
  TorchArchive archive(const DcpLocation& location, const std::string& where) const;
  StoredArray array(const TorchArchive& archive, const DcpTensor& tensor, const DcpChunk& chunk) const;
  void read_chunk(const DcpTensor& tensor, const DcpChunk& chunk, int64_t begin, int64_t end, char* to) const;
  std::string where_of(const std::string& name, const DcpLocation& location) const;
  std::string where_of(const DcpTensor& tensor, const DcpChunk& chunk) const;
  // Was this storage's checksum found right before? Notes that it was.
  bool is_verified(const ZipRecord& record, const InputFile& file) const;
  void note_verified(const ZipRecord& record, const InputFile& file) const;

  std::filesystem::path path_;
  DcpMetadata metadata_;
  mutable std::mutex mutex_;
  mutable std::map<std::string, std::unique_ptr<InputFile>> files_;
  mutable std::set<std::pair<const InputFile*, uint64_t>> verified_;  // by offset of the storage's record
};

}  // namespace fsdp::checkpoint
