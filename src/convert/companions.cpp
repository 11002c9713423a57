#include "convert/companions.h"

#include "formats/common/mapped_file.h"
#include "formats/common/output_file.h"
#include "formats/hugging_face/hf_folder_writer.h"

namespace fsdp::convert {

namespace fs = std::filesystem;

std::vector<std::string> companions(const fs::path& folder) {
  std::vector<std::string> names = formats::tokenizer_files(folder);
  if (fs::exists(folder / "config.json")) names.insert(names.begin(), "config.json");
  return names;
}

void copy_companions(const fs::path& from, const fs::path& to) {
  for (const std::string& name : companions(from)) {
    formats::write_file(to / name, formats::MappedFile::open(from / name)->bytes());
  }
}

}  // namespace fsdp::convert
