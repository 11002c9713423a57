// Reads a checkpoint of torch.distributed.checkpoint: its .metadata file and the .distcp files that it lists.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "base/mutex.h"
#include "formats/common/input_file.h"
#include "formats/dcp/dcp_metadata.h"
#include "formats/torch_archive/torch_archive.h"

namespace fsdp::formats {

// Runs no code that the files name, and reads nothing outside of the folder. Checks the form of each archive, and the
// CRC-32 of the data stored in it once, at the first read. Errors name the file, the tensor or key, and the chunk.
// Threads: const functions may be called from any number of threads.
class DcpFolder {
 public:
  // Reads and checks .metadata (see parse_dcp_metadata). Checks that its files exist and are long enough.
  explicit DcpFolder(std::filesystem::path path);

  const std::filesystem::path& path() const { return path_; }
  const DcpMetadata& metadata() const { return metadata_; }
  // Throws an error that names the tensor if the checkpoint has no tensor of this name.
  const DcpTensor& tensor(const std::string& name) const;

  // Copies elements [begin, end) of the tensor, in row-major order of their indices, into `out`: 1-D, contiguous, end -
  // begin elements of the stored dtype, on any device. Reads only the needed parts of chunks that contain some of these
  // elements (and, the first time, the data that their checksums cover). Memory: at most twice that of `out`, plus
  // whole chunks if a chunk is not stored in row-major order. After an error the contents of `out` are unspecified.
  void read(const std::string& name, int64_t begin, int64_t end, at::Tensor out) const;

  // Returns the value of an entry that is not a tensor, if it is plain data (see formats/pickle/plain_value.h).
  nlohmann::json value(const std::string& name) const;

  // Reads a chunk, or the archive of a value without unpickling it, and throws if it does not match .metadata or the
  // archive's checksums.
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
  // Whether this storage's checksum was verified before; note_verified() records that it was.
  bool is_verified(const ZipRecord& record, const InputFile& file) const;
  void note_verified(const ZipRecord& record, const InputFile& file) const;

  std::filesystem::path path_;
  DcpMetadata metadata_;
  mutable base::Mutex mutex_;
  mutable std::map<std::string, std::unique_ptr<InputFile>> files_ FSDP_GUARDED_BY(mutex_);
  // By offset of the storage's record.
  mutable std::set<std::pair<const InputFile*, uint64_t>> verified_ FSDP_GUARDED_BY(mutex_);
};

}  // namespace fsdp::formats
