#include "formats/common/file_system.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <vector>

#include "base/check.h"

namespace fsdp::formats {

namespace fs = std::filesystem;

int FileSystem::open(const char* path, int flags, mode_t mode) { return ::open(path, flags, mode); }
int FileSystem::close(int file) { return ::close(file); }
ssize_t FileSystem::pwrite(int file, const void* data, size_t size, off_t offset) {
  return ::pwrite(file, data, size, offset);
}
ssize_t FileSystem::pread(int file, void* data, size_t size, off_t offset) { return ::pread(file, data, size, offset); }
int FileSystem::fallocate(int file, off_t size) { return ::fallocate(file, 0, 0, size); }
int FileSystem::fsync(int file) { return ::fsync(file); }
int FileSystem::rename(const char* from, const char* to) { return ::rename(from, to); }
int FileSystem::exchange(const char* a, const char* b) {
  return ::renameat2(AT_FDCWD, a, AT_FDCWD, b, RENAME_EXCHANGE);
}
int FileSystem::unlink(const char* path) { return ::unlink(path); }
int FileSystem::mkdir(const char* path, mode_t mode) { return ::mkdir(path, mode); }
int FileSystem::rmdir(const char* path) { return ::rmdir(path); }

namespace {

std::atomic<FileSystem*>& present() {
  static FileSystem system;
  static std::atomic<FileSystem*> used{&system};
  return used;
}

// Lists all entries first, because the result of a listing is unspecified if entries are removed during it.
std::vector<fs::directory_entry> entries_of(const fs::path& folder, std::error_code& failure) {
  std::vector<fs::directory_entry> entries;
  for (fs::directory_iterator at(folder, failure), end; !failure && at != end; at.increment(failure)) {
    entries.push_back(*at);
  }
  return entries;
}

bool remove_entries(const fs::path& folder) {
  std::error_code failure;
  bool removed = true;
  for (const fs::directory_entry& entry : entries_of(folder, failure)) {
    const bool is_folder = entry.symlink_status(failure).type() == fs::file_type::directory;
    removed &= is_folder ? remove_tree(entry.path()) : file_system().unlink(entry.path().c_str()) == 0;
  }
  return removed && !failure;
}

}  // namespace

FileSystem& file_system() { return *present(); }

FileSystemGuard::FileSystemGuard(FileSystem& replacement) : before_(*present().exchange(&replacement)) {}
FileSystemGuard::~FileSystemGuard() { present() = &before_; }

void make_folders(const fs::path& folder) {
  std::error_code ignored;
  if (folder.empty() || fs::is_directory(folder, ignored)) return;
  const fs::path clean = folder.has_filename() ? folder : folder.parent_path();
  make_folders(clean.parent_path());
  if (uninterrupted([&] { return file_system().mkdir(clean.c_str(), 0777); }) != 0) {
    const int error = errno;
    FSDP_CHECK_WITH(FileError, error == EEXIST && fs::is_directory(clean, ignored), clean.string(),
                    ": the folder cannot be created: ", std::strerror(error));
  }
}

bool remove_tree(const fs::path& folder) noexcept {
  try {
    return remove_entries(folder) && file_system().rmdir(folder.c_str()) == 0;
  } catch (const std::exception&) {  // too little memory for names
    errno = ENOMEM;
    return false;
  }
}

}  // namespace fsdp::formats
