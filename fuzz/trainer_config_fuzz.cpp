// Reads the trainer's config file.
#include "config/config_reader.h"
#include "reader_check.h"

using namespace fsdp;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const fuzz::TemporaryFolder folder;
  static const std::string path = (folder / "config.json").string(), again = (folder / "again.json").string();
  folder.write("config.json", std::string(fuzz::text_of(data, size)));
  nlohmann::ordered_json resolved;
  fuzz::check_reader(size, path, [&] { resolved = to_json(trainer::read_config(path, {})); });
  if (!resolved.empty()) {
    folder.write("again.json", resolved.dump());
    fuzz::require(to_json(trainer::read_config(again, {})) == resolved, "a resolved config reads back");
  }
  return 0;
}
