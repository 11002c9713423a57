// A file that appears under its name only when it is complete.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

namespace fsdp::formats {

// The file is written under a temporary name in the target's folder. Errors name the target and the system's reason.
// After an error, or if the object is destroyed before commit(), the temporary file is removed and the target is
// unchanged. Used by one thread.
class OutputFile {
 public:
  explicit OutputFile(std::filesystem::path target);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  // Sets the file's size and allocates its disk space, if the file system supports that, so that a full disk is
  // detected before the first byte is written.
  void reserve(uint64_t bytes);
  // Writes all bytes at `offset` from the start of the file.
  void write(uint64_t offset, std::string_view bytes);
  // Flushes the data to the disk and gives the file its name, replacing an existing file of that name.
  void commit();

  const std::filesystem::path& target() const { return target_; }

 private:
  void discard() noexcept;
  [[noreturn]] void fail(const char* action, int error);

  std::filesystem::path target_;
  std::filesystem::path temporary_;
  int fd_ = -1;
};

// Flushes the entries of a folder (names, not contents) to the disk. Errors name the folder.
void sync_folder(const std::filesystem::path& folder);

// Returns an unused name in the folder of `target`: ".NAME.tmp-PID-N".
std::filesystem::path temporary_sibling(const std::filesystem::path& target);

// Writes a whole file, with the guarantees of OutputFile.
void write_file(const std::filesystem::path& target, std::string_view bytes);

}  // namespace fsdp::formats
