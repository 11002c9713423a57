#include "formats/hugging_face/hf_index.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "formats/common/json_text.h"

namespace fsdp::formats {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

bool is_inside(const fs::path& path, const fs::path& folder) {
  const auto mismatch = std::mismatch(folder.begin(), folder.end(), path.begin(), path.end());
  return mismatch.first == folder.end();
}

// Returns the folder of the Hugging Face cache that the links of this snapshot point into; empty for other folders.
fs::path cache_blobs(const fs::path& folder) {
  const bool is_snapshot = folder.has_parent_path() && folder.parent_path().filename() == "snapshots";
  return is_snapshot ? folder.parent_path().parent_path() / "blobs" : fs::path();
}

void check_shard_path(const fs::path& index, const std::string& shard) {
  const std::string where = c10::str(index.string(), ": weight_map names the file ", quoted_name(shard));
  const fs::path relative(shard);
  FSDP_CHECK_WITH(FileError, !shard.empty() && shard.find('\0') == std::string::npos, where, ", which is no file name");
  FSDP_CHECK_WITH(FileError, relative.is_relative(), where,
                  ": an absolute path; shards must lie in the folder of the index");
  FSDP_CHECK_WITH(FileError, std::find(relative.begin(), relative.end(), "..") == relative.end(), where,
                  ": \"..\" is refused; shards must lie in the folder of the index");
  const fs::path folder = fs::canonical(index.parent_path().empty() ? fs::path(".") : index.parent_path());
  std::error_code failure;
  const fs::path target = fs::canonical(folder / relative, failure);
  FSDP_CHECK_WITH(FileError, !failure, where, ", which cannot be opened: ", failure.message());
  const fs::path blobs = cache_blobs(folder);
  FSDP_CHECK_WITH(FileError, is_inside(target, folder) || (!blobs.empty() && is_inside(target, blobs)), where,
                  ": a link to ", target.string(), ", outside the folder of the index");
}

}  // namespace

ShardMap read_shard_index(const fs::path& index) {
  const json content = read_json_file(index);
  FSDP_CHECK_WITH(FileError, content.is_object() && content.contains("weight_map") && content["weight_map"].is_object(),
                  index.string(),
                  ": expected an object with the key \"weight_map\", an object of tensor names and files");
  ShardMap shards;
  for (const auto& [tensor, shard] : content["weight_map"].items()) {
    FSDP_CHECK_WITH(FileError, shard.is_string(), index.string(), ": weight_map ", quoted_name(tensor),
                    " must be a file name, got ", json_text(shard));
    shards[shard.get_ref<const std::string&>()].push_back(tensor);
  }
  FSDP_CHECK_WITH(FileError, !shards.empty(), index.string(), ": weight_map is empty");
  for (const auto& [shard, tensors] : shards) check_shard_path(index, shard);
  return shards;
}

}  // namespace fsdp::formats
