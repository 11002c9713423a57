// The system calls that write files of models and checkpoints, and those that read checkpoints, in one place: tests
// make any of them fail.
#pragma once

#include <sys/types.h>

#include <cerrno>
#include <cstddef>
#include <filesystem>

namespace fsdp::checkpoint {

// Each function is the system call of its name, with its results and errno, unless it says more. Threads: as the calls.
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
  // Takes disk space for the file's first `size` bytes.
  virtual int fallocate(int file, off_t size);
  virtual int fsync(int file);
  virtual int rename(const char* from, const char* to);
  // Exchanges two names in one step.
  virtual int exchange(const char* a, const char* b);
  virtual int unlink(const char* path);
  virtual int mkdir(const char* path, mode_t mode);
  virtual int rmdir(const char* path);
};

// What this process uses: the system itself, or what a test has put in its place.
FileSystem& file_system();

// For tests: `replacement` is used while it lasts, by all threads.
class FileSystemGuard {
 public:
  explicit FileSystemGuard(FileSystem& replacement);
  ~FileSystemGuard();
  FileSystemGuard(const FileSystemGuard&) = delete;
  FileSystemGuard& operator=(const FileSystemGuard&) = delete;

 private:
  FileSystem& before_;
};

// The result of a system call, made again as long as a signal interrupts it.
template <typename Call>
auto uninterrupted(const Call& call) {
  auto result = call();
  while (result < 0 && errno == EINTR) {
    result = call();
  }
  return result;
}

// Makes the folder and those above it that are missing; one that is there is fine. Throws with its name.
void make_folders(const std::filesystem::path& folder);

// Removes a folder with everything in it, without following links; false, and errno, when something is left.
bool remove_tree(const std::filesystem::path& folder) noexcept;

}  // namespace fsdp::checkpoint
