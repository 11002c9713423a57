#include "formats/common/output_file.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <unistd.h>  // getpid

#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "formats/common/file_system.h"

namespace fsdp::formats {

namespace fs = std::filesystem;

namespace {

int open_file(const std::string& name, int flags) {
  return uninterrupted([&] { return file_system().open(name.c_str(), flags | O_CLOEXEC, 0666); });
}

int sync(int file) {
  return uninterrupted([&] { return file_system().fsync(file); });
}

}  // namespace

fs::path temporary_sibling(const fs::path& target) {
  static std::atomic<uint64_t> count{0};
  // Removes a trailing slash, which would hide the name.
  const fs::path clean = target.has_filename() ? target : target.parent_path();
  return clean.parent_path() / c10::str(".", clean.filename().string(), ".tmp-", ::getpid(), "-", count++);
}

OutputFile::OutputFile(fs::path target) : target_(std::move(target)), temporary_(temporary_sibling(target_)) {
  fd_ = open_file(temporary_, O_WRONLY | O_CREAT | O_EXCL);
  FSDP_CHECK_WITH(FileError, fd_ >= 0, target_.string(), ": cannot be created: ", std::strerror(errno));
}

OutputFile::~OutputFile() { discard(); }

void OutputFile::discard() noexcept {
  if (fd_ >= 0) {
    file_system().close(fd_);
    file_system().unlink(temporary_.c_str());
    fd_ = -1;
  }
}

void OutputFile::fail(const char* action, int error) {
  discard();
  FSDP_CHECK_WITH(FileError, false, target_.string(), ": ", action, " failed: ", std::strerror(error),
                  "; nothing was left behind");
}

void OutputFile::reserve(uint64_t bytes) {
  TORCH_CHECK(fd_ >= 0, target_.string(), ": is no longer open for writing");
  if (bytes == 0) return;
  const int result = uninterrupted([&] { return file_system().fallocate(fd_, static_cast<off_t>(bytes)); });
  if (result != 0 && errno != EOPNOTSUPP && errno != ENOSYS) {
    const int error = errno;
    fail(c10::str("reserving ", bytes, " bytes").c_str(), error);
  }
}

void OutputFile::write(uint64_t offset, std::string_view bytes) {
  TORCH_CHECK(fd_ >= 0, target_.string(), ": is no longer open for writing");
  while (!bytes.empty()) {
    const ssize_t written = uninterrupted(
        [&] { return file_system().pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(offset)); });
    if (written <= 0) fail("writing", written < 0 ? errno : EIO);
    offset += static_cast<uint64_t>(written);
    bytes.remove_prefix(static_cast<size_t>(written));
  }
}

void OutputFile::commit() {
  TORCH_CHECK(fd_ >= 0, target_.string(), ": is no longer open for writing");
  if (sync(fd_) != 0) fail("writing to the disk", errno);
  if (uninterrupted([&] { return file_system().rename(temporary_.c_str(), target_.c_str()); }) != 0) {
    fail("renaming the finished file", errno);
  }
  file_system().close(std::exchange(fd_, -1));
  sync_folder(target_.parent_path());
}

void sync_folder(const fs::path& folder) {
  const std::string name = folder.empty() ? "." : folder.string();
  const int fd = open_file(name, O_RDONLY | O_DIRECTORY);
  FSDP_CHECK_WITH(FileError, fd >= 0, name, ": cannot be opened: ", std::strerror(errno));
  // Some file systems cannot sync folders and return EINVAL; then renames are as durable as possible.
  const int error = sync(fd) == 0 || errno == EINVAL ? 0 : errno;
  file_system().close(fd);
  FSDP_CHECK_WITH(FileError, error == 0, name, ": writing the folder to the disk failed: ", std::strerror(error));
}

void write_file(const fs::path& target, std::string_view bytes) {
  OutputFile file(target);
  file.write(0, bytes);
  file.commit();
}

}  // namespace fsdp::formats
