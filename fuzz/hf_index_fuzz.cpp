// Reads the index of a Hugging Face folder that contains files, folders and links which the index may name.
#include "formats/hugging_face/hf_index.h"
#include "reader_check.h"

using namespace fsdp;

namespace {

namespace fs = std::filesystem;

// A model folder with shards, and with links to targets inside and outside the folder.
struct Folder {
  Folder() {
    for (const char* name : {"model/one", "model/sub/two", "outside/three"}) parent.write(name, "");
    fs::create_symlink("sub/two", model / "inward");
    fs::create_symlink("../outside/three", model / "outward");
    fs::create_directory_symlink("../outside", model / "door");
    fs::create_symlink("loop", model / "loop");
  }

  const fuzz::TemporaryFolder parent;
  const fs::path model = parent / "model";
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Folder folder;
  static const fs::path path = folder.model / "index.json";
  folder.parent.write("model/index.json", std::string(fuzz::text_of(data, size)));
  fuzz::check_reader(size, path.string(), [&] {
    for (const auto& [shard, tensors] : formats::read_shard_index(path)) {
      const std::string target = fs::canonical(folder.model / shard).string() + "/";
      fuzz::require(target.starts_with(fs::canonical(folder.model).string() + "/"), "shards lie in the folder");
      fuzz::require(!tensors.empty(), "each shard has a tensor");
    }
  });
  return 0;
}
