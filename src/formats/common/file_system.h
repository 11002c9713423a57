// The system calls that write model and checkpoint files and read checkpoints, in one place, so that tests can make any
// of them fail.
#pragma once

#include <sys/types.h>

#include <cerrno>
#include <cstddef>
#include <filesystem>

namespace fsdp::formats {

// Each function is the system call of its name, with its results and errno, unless its comment says more. Threads: as
// for the system calls.
class FileSystem {
 public:
  FileSystem() = default;
  virtual ~FileSystem() = default;
  FileSystem(const FileSystem&) = delete;
  FileSystem& operator=(const FileSystem&) = delete;

  virtual int open(const char* path, int flags, mode_t mode);
  virtual int close(int file);
  virtual ssize_t pwrite(int file, const void* data, size_t size, off_t offset);
  virtual ssize_t pread(int file, void* data, size_t size, off_t offset);
  // Allocates disk space for the file's first `size` bytes.
  virtual int fallocate(int file, off_t size);
  virtual int fsync(int file);
  virtual int rename(const char* from, const char* to);
  // Exchanges two names atomically.
  virtual int exchange(const char* a, const char* b);
  virtual int unlink(const char* path);
  virtual int mkdir(const char* path, mode_t mode);
  virtual int rmdir(const char* path);
};

// Returns the implementation that this process uses: the system itself, or a test's replacement.
FileSystem& file_system();

// For tests: all threads use `replacement` while the guard exists.
class FileSystemGuard {
 public:
  explicit FileSystemGuard(FileSystem& replacement);
  ~FileSystemGuard();
  FileSystemGuard(const FileSystemGuard&) = delete;
  FileSystemGuard& operator=(const FileSystemGuard&) = delete;

 private:
  FileSystem& before_;
};

// Returns the result of a system call, which is repeated as long as a signal interrupts it.
template <typename Call>
auto uninterrupted(const Call& call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

// Creates the folder and its missing parents; an existing folder is not an error. Errors name the folder.
void make_folders(const std::filesystem::path& folder);

// Removes a folder with everything in it, without following links. Returns false and sets errno if something is left.
bool remove_tree(const std::filesystem::path& folder) noexcept;

}  // namespace fsdp::formats
