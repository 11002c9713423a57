#include "formats/common/input_file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>

#include "base/check.h"
#include "formats/common/file_system.h"

namespace fsdp::formats {

namespace fs = std::filesystem;

InputFile::InputFile(const fs::path& path) : path_(path) {
  // Without O_NONBLOCK, opening a named pipe would block.
  constexpr int kFlags = O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
  file_ = uninterrupted([&] { return file_system().open(path.c_str(), kFlags, 0); });
  FSDP_CHECK_WITH(FileError, file_ >= 0, path.string(),
                  ": cannot be opened: ", errno == ELOOP ? "it is a symbolic link" : std::strerror(errno));
  struct stat status{};
  if (::fstat(file_, &status) != 0 || !S_ISREG(status.st_mode)) {
    file_system().close(file_);
    FSDP_CHECK_WITH(FileError, false, path.string(), ": not a regular file");
  }
  bytes_ = static_cast<uint64_t>(status.st_size);
}

InputFile::~InputFile() { file_system().close(file_); }

void InputFile::read(uint64_t offset, char* to, size_t bytes) const {
  while (bytes > 0) {
    const ssize_t done =
        uninterrupted([&] { return file_system().pread(file_, to, bytes, static_cast<off_t>(offset)); });
    FSDP_CHECK_WITH(FileError, done >= 0, path_.string(), ": reading failed: ", std::strerror(errno));
    FSDP_CHECK_WITH(FileError, done > 0, path_.string(), ": ends at byte ", offset, ": it was cut short");
    to += done;
    offset += static_cast<uint64_t>(done);
    bytes -= static_cast<size_t>(done);
  }
}

std::string InputFile::read(uint64_t offset, size_t bytes) const {
  std::string text(bytes, '\0');
  read(offset, text.data(), bytes);
  return text;
}

std::string read_file(const fs::path& path, uint64_t max_bytes) {
  const InputFile file(path);
  FSDP_CHECK_WITH(FileError, file.bytes() <= max_bytes, path.string(), ": ", file.bytes(),
                  " bytes are more than the limit of ", max_bytes);
  return file.read(0, file.bytes());
}

}  // namespace fsdp::formats
