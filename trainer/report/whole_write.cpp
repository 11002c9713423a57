#include "report/whole_write.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <stdexcept>

namespace fsdp::trainer {

void write_whole(int descriptor, std::string_view bytes, const std::string& path) {
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t written = ::write(descriptor, bytes.data() + done, bytes.size() - done);
    if (written < 0 && errno != EINTR) throw std::runtime_error(path + ": cannot write: " + std::strerror(errno));
    if (written > 0) done += static_cast<size_t>(written);
  }
}

void replace_file(const std::string& path, std::string_view bytes) {
  const std::string unfinished = path + ".tmp";
  std::ofstream file(unfinished, std::ios::binary);
  file << bytes;
  file.close();
  if (!file) throw std::runtime_error(path + ": cannot write: " + std::strerror(errno));
  std::filesystem::rename(unfinished, path);
}

}  // namespace fsdp::trainer
