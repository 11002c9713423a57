// A read-only memory-mapped file, whose pages are loaded when they are first read.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <string_view>

namespace fsdp::formats {

// Threads: may be read by any number of threads. If another process truncates the file while it is mapped, reads beyond
// its new end fail with SIGBUS; replacing it by rename is safe.
class MappedFile {
 public:
  // Errors name the path: missing, a folder, no permission.
  static std::shared_ptr<const MappedFile> open(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::string_view bytes() const { return {data_, size_}; }

 private:
  MappedFile(std::filesystem::path path, const char* data, size_t size);

  std::filesystem::path path_;
  const char* data_;
  size_t size_;
};

}  // namespace fsdp::formats
