#include "report/whole_write.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "fsdp/errors.h"

namespace fsdp::trainer {

void replace_file(const std::string& path, std::string_view bytes) {
  const std::string unfinished = path + ".tmp";
  std::ofstream file(unfinished, std::ios::binary);
  file << bytes;
  file.close();
  if (!file) throw FileError(path + ": cannot write: " + std::strerror(errno));
  std::filesystem::rename(unfinished, path);
}

}  // namespace fsdp::trainer
