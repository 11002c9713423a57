// Reads a training checkpoint: a manifest and the safetensors files that it lists.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "formats/own/manifest.h"

namespace fsdp::formats {

// Checks all data against the manifest's checksums before returning it. If a file was changed, cut short or replaced in
// the meantime, an error names the file and the tensor. Reads only the requested data, in whole blocks
// (formats/common/checksum.h). Threads: const functions may be called from any number of threads.
class CheckpointFolder {
 public:
  // Reads and checks the manifest (see parse_manifest). Checks that its files exist as regular files (no links) of the
  // listed sizes, and that the folder contains no other safetensors files.
  explicit CheckpointFolder(std::filesystem::path path);
  ~CheckpointFolder();
  CheckpointFolder(const CheckpointFolder&) = delete;
  CheckpointFolder& operator=(const CheckpointFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  const Manifest& manifest() const { return manifest_; }
  // Throws an error that names the tensor if the checkpoint has no tensor of this name.
  const StoredTensor& tensor(const std::string& name) const;

  // Copies elements [begin, end), in the stored order, into `out`: 1-D, contiguous, end - begin elements of the stored
  // dtype, on any device. After an error the contents of `out` are unspecified.
  void read(const std::string& name, int64_t begin, int64_t end, at::Tensor out) const;

  // Reads everything and throws at the first mismatch with the manifest.
  void verify() const;
  // Checks only the files' headers.
  void verify_headers() const;

 private:
  class File;
  // Returns the file, which is opened, and its header checked, at the first call.
  const File& file(size_t index) const;
  void check_files() const;
  // Bytes [first, last) of a part of `part_bytes`, and the destination; null: the bytes are only checked.
  struct Wanted {
    uint64_t part_bytes, first, last;
    char* to;
  };
  std::string where_of(const std::string& name, const StoredPart& part) const;
  void read_part(const std::string& where, const StoredPart& part, const Wanted& wanted) const;

  std::filesystem::path path_;
  Manifest manifest_;
  mutable base::Mutex mutex_;
  mutable std::vector<std::unique_ptr<File>> files_ FSDP_GUARDED_BY(mutex_);  // null until first read
};

}  // namespace fsdp::formats
