// A file system in which some calls fail.
#pragma once

#include <atomic>
#include <cstdint>

#include "formats/common/file_system.h"

namespace fsdp::testing {

// The fault that replaces a call that can fail. All calls can fail, except close, unlink and rmdir.
struct FileFault {
  enum class Kind : uint8_t {
    kError,  // the call fails with `error`
    kShort,  // pwrite and pread transfer half of their bytes; other calls are unchanged
  };
  Kind kind = Kind::kError;
  int error = 0;
  int64_t first = 0;   // the call that is affected, counted from 1
  bool lasts = false;  // whether all later calls are affected too
};

// Thread-safe.
class FaultyFileSystem final : public formats::FileSystem {
 public:
  explicit FaultyFileSystem(const FileFault& fault) : fault_(fault) {}

  // Returns the number of calls so far that can fail.
  int64_t calls() const { return calls_; }

  int open(const char* path, int flags, mode_t mode) override;
  ssize_t pwrite(int file, const void* data, size_t size, off_t offset) override;
  ssize_t pread(int file, void* data, size_t size, off_t offset) override;
  int fallocate(int file, off_t size) override;
  int fsync(int file) override;
  int rename(const char* from, const char* to) override;
  int exchange(const char* a, const char* b) override;
  int mkdir(const char* path, mode_t mode) override;

 private:
  bool strikes();
  // Counts this call and returns whether it fails; if so, errno is set.
  bool fails();

  const FileFault fault_;
  std::atomic<int64_t> calls_{0};
};

// A file system whose fsync does not wait for a disk.
class UnsyncedFileSystem final : public formats::FileSystem {
 public:
  int fsync(int) override { return 0; }
};

}  // namespace fsdp::testing
