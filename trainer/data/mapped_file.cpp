#include "data/mapped_file.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace fsdp::trainer {

namespace {

struct Descriptor {
  int value;
  ~Descriptor() {
    if (value >= 0) close(value);
  }
};

}  // namespace

MappedFile::MappedFile(const std::string& path) {
  // Without blocking, so that a pipe is an error and no hang.
  const Descriptor file{open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  TORCH_CHECK(file.value >= 0, path, ": cannot open the file: ", std::strerror(errno));
  struct stat status {};
  TORCH_CHECK(fstat(file.value, &status) == 0, path, ": cannot examine the file: ", std::strerror(errno));
  TORCH_CHECK(S_ISREG(status.st_mode), path, ": is not a regular file");
  TORCH_CHECK(status.st_size > 0, path, ": the file is empty");
  size_ = static_cast<size_t>(status.st_size);
  data_ = mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.value, 0);
  TORCH_CHECK(data_ != MAP_FAILED, path, ": cannot map the file into memory: ", std::strerror(errno));
}

MappedFile::~MappedFile() { munmap(data_, size_); }

}  // namespace fsdp::trainer
