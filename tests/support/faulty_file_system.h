// The system's files, of which some calls go wrong.
#pragma once

#include <atomic>
#include <cstdint>

#include "checkpoint/file_system.h"

namespace fsdp::testing {

// What happens instead of a call that can fail: all but close, unlink and rmdir.
struct FileFault {
  enum class Kind : uint8_t {
    kError,  // it fails with `error`
    kShort,  // pwrite and pread do half of their bytes; other calls are as ever
  };
  Kind kind = Kind::kError;
  int error = 0;
  int64_t first = 0;   // the call it happens to, counted from 1
  bool lasts = false;  // and to all calls after it
};

// Threads: safe.
class FaultyFileSystem final : public checkpoint::FileSystem {
 public:
  explicit FaultyFileSystem(const FileFault& fault) : fault_(fault) {}

  // Calls that can fail, so far.
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
  // Whether this call fails; then errno is set.
  bool fails();

  const FileFault fault_;
  std::atomic<int64_t> calls_{0};
};

// Waits for no disk.
class UnsyncedFileSystem final : public checkpoint::FileSystem {
 public:
  int fsync(int) override { return 0; }
};

}  // namespace fsdp::testing
