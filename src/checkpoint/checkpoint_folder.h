// Reads a training checkpoint: a manifest, and the safetensors files that it lists.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "checkpoint/manifest.h"

namespace fsdp::checkpoint {

// What is read is checked against the manifest's checksums before anybody sees it; a file that is changed, cut short or
// replaced meanwhile gives an error that names it, and the tensor. Reads only what is asked for, in whole blocks
// (checksum.h). Threads: const functions may be called from any number of threads.
class CheckpointFolder {
 public:
  // Reads and checks the manifest (see parse_manifest), and that its files, and no other safetensors files, are there
  // with their sizes: regular files, no links.
  explicit CheckpointFolder(std::filesystem::path path);
  ~CheckpointFolder();
  CheckpointFolder(const CheckpointFolder&) = delete;
  CheckpointFolder& operator=(const CheckpointFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  const Manifest& manifest() const { return manifest_; }
  // An error that names the tensor when there is none of this name.
  const StoredTensor& tensor(const std::string& name) const;

  // Copies elements [begin, end), in the stored order, into `out`: 1-D, contiguous, end - begin elements of the stored
  // dtype, on any device. After an error `out` holds anything.
  void read(const std::string& name, int64_t begin, int64_t end, at::Tensor out) const;

  // Reads everything and throws at the first thing that is not as the manifest says.
  void verify() const;
  // The same for the files' headers alone.
  void verify_headers() const;

 private:
  class File;
  // Opened, and its header checked, when it is first read.
  const File& file(size_t index) const;
  void check_files() const;
  // Bytes [first, last) of a part of `part_bytes`, and where they are to go; null: nowhere.
  struct Wanted {
    uint64_t part_bytes, first, last;
    char* to;
  };
  std::string where_of(const std::string& name, const StoredPart& part) const;
  void read_part(const std::string& where, const StoredPart& part, const Wanted& wanted) const;

  std::filesystem::path path_;
  Manifest manifest_;
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<File>> files_;  // null until they are read
};

}  // namespace fsdp::checkpoint
