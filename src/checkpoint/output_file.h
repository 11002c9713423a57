// A file that appears under its name only when it is complete.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

namespace fsdp::checkpoint {

// Written under a temporary name beside the target. Errors name the target and the system's reason; after an
// error, or when destroyed before commit(), the temporary file is removed and the target is as it was. Used
// by one thread.
class OutputFile {
 public:
  explicit OutputFile(std::filesystem::path target);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  // Sets the file's size and takes the disk space for it, where the file system can do that, so that a full
  // disk is known before the first byte is written.
  void reserve(uint64_t bytes);
  // Writes all bytes at `offset` from the start of the file.
  void write(uint64_t offset, std::string_view bytes);
  // Brings the data to the disk and gives the file its name, replacing a file that has it.
  void commit();

  const std::filesystem::path& target() const { return target_; }

 private:
  void discard() noexcept;
  [[noreturn]] void fail(const char* action, int error);

  std::filesystem::path target_;
  std::filesystem::path temporary_;
  int fd_ = -1;
};

// Brings the entries of a folder (names, not contents) to the disk. Throws with the folder's name.
void sync_folder(const std::filesystem::path& folder);

// A name beside `target` that nothing has yet: ".NAME.SUFFIX-PID-N".
std::filesystem::path temporary_sibling(const std::filesystem::path& target);

// Writes a whole file. Same promises.
void write_file(const std::filesystem::path& target, std::string_view bytes);

}  // namespace fsdp::checkpoint
