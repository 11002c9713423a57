#include "support/faults/faulty_file_system.h"

#include <cerrno>

namespace fsdp::testing {

bool FaultyFileSystem::strikes() {
  const int64_t call = ++calls_;
  return fault_.lasts ? call >= fault_.first : call == fault_.first;
}

bool FaultyFileSystem::fails() {
  if (!strikes() || fault_.kind != FileFault::Kind::kError) return false;
  errno = fault_.error;
  return true;
}

int FaultyFileSystem::open(const char* path, int flags, mode_t mode) {
  return fails() ? -1 : FileSystem::open(path, flags, mode);
}
ssize_t FaultyFileSystem::pwrite(int file, const void* data, size_t size, off_t offset) {
  if (fault_.kind == FileFault::Kind::kShort) {
    return FileSystem::pwrite(file, data, strikes() ? (size + 1) / 2 : size, offset);
  }
  return fails() ? -1 : FileSystem::pwrite(file, data, size, offset);
}
ssize_t FaultyFileSystem::pread(int file, void* data, size_t size, off_t offset) {
  if (fault_.kind == FileFault::Kind::kShort) {
    return FileSystem::pread(file, data, strikes() ? (size + 1) / 2 : size, offset);
  }
  return fails() ? -1 : FileSystem::pread(file, data, size, offset);
}
int FaultyFileSystem::fallocate(int file, off_t size) { return fails() ? -1 : FileSystem::fallocate(file, size); }
int FaultyFileSystem::fsync(int file) { return fails() ? -1 : FileSystem::fsync(file); }
int FaultyFileSystem::rename(const char* from, const char* to) { return fails() ? -1 : FileSystem::rename(from, to); }
int FaultyFileSystem::exchange(const char* a, const char* b) { return fails() ? -1 : FileSystem::exchange(a, b); }
int FaultyFileSystem::mkdir(const char* path, mode_t mode) { return fails() ? -1 : FileSystem::mkdir(path, mode); }

}  // namespace fsdp::testing
