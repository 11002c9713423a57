#include "formats/common/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace fsdp::formats {
namespace {

// Closes a file descriptor at the end of its scope; a mapping stays valid without it.
struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

}  // namespace

std::shared_ptr<const MappedFile> MappedFile::open(const std::filesystem::path& path) {
  // Without O_NONBLOCK, opening a named pipe would block.
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  FSDP_CHECK_WITH(FileError, file.fd >= 0, path.string(), ": cannot be opened: ", std::strerror(errno));
  struct stat status{};
  FSDP_CHECK_WITH(FileError, ::fstat(file.fd, &status) == 0, path.string(), ": ", std::strerror(errno));
  FSDP_CHECK_WITH(FileError, S_ISREG(status.st_mode), path.string(), ": not a regular file");
  const auto size = static_cast<size_t>(status.st_size);
  if (size == 0) return std::shared_ptr<const MappedFile>(new MappedFile(path, nullptr, 0));
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.fd, 0);
  FSDP_CHECK_WITH(FileError, data != MAP_FAILED, path.string(),
                  ": cannot be mapped into memory: ", std::strerror(errno));
  return std::shared_ptr<const MappedFile>(new MappedFile(path, static_cast<const char*>(data), size));
}

MappedFile::MappedFile(std::filesystem::path path, const char* data, size_t size)
    : path_(std::move(path)), data_(data), size_(size) {}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<char*>(data_), size_);
}

}  // namespace fsdp::formats
