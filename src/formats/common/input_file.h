// A file that is read at given offsets and not mapped, so that truncation during a read causes an error, not a signal.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>

namespace fsdp::formats {

// A regular file, open for reading. Threads: const functions may be called from any number of threads.
class InputFile {
 public:
  // Errors name the path: missing, a symbolic link, not a regular file, no permission.
  explicit InputFile(const std::filesystem::path& path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  const std::filesystem::path& path() const { return path_; }
  // The file's size when it was opened.
  uint64_t bytes() const { return bytes_; }

  // Reads exactly `bytes` bytes. If the file ends before, throws an error that names the path.
  void read(uint64_t offset, char* to, size_t bytes) const;
  std::string read(uint64_t offset, size_t bytes) const;

 private:
  std::filesystem::path path_;
  int file_ = -1;
  uint64_t bytes_ = 0;
};

// Returns the contents of a whole file. Throws if it has more than `max_bytes`.
std::string read_file(const std::filesystem::path& path, uint64_t max_bytes);

}  // namespace fsdp::formats
