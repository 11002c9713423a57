#include "report_page/page_file.h"

#include <filesystem>

#include "fsdp/errors.h"

namespace fsdp::trainer {

void check_folder_of_page(const std::string& target, const std::string& option) {
  const std::filesystem::path path = target;
  const std::filesystem::path folder = path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
  if (std::filesystem::is_directory(folder)) return;
  throw FileError(target + ": there is no folder " + folder.string() + "; create it, or name another " + option);
}

}  // namespace fsdp::trainer
