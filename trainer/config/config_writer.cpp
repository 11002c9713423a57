#include "config/config_writer.h"

#include <c10/util/StringUtil.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "config/config_reader.h"
#include "fsdp/errors.h"

namespace fsdp::trainer {

void write_config(const Config& config, const std::string& path) {
  const std::string unfinished = path + ".tmp";
  std::ofstream file(unfinished);
  file << to_json(config).dump(2) << "\n";
  file.close();
  if (!file) throw FileError(c10::str(path, ": cannot write: ", std::strerror(errno)));
  std::filesystem::rename(unfinished, path);
}

}  // namespace fsdp::trainer
