// model.safetensors.index.json: which shard file of a folder holds which tensor.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace fsdp::formats {

// Maps each shard file (path as in the index) to the names of the tensors that the index lists for it.
using ShardMap = std::map<std::string, std::vector<std::string>>;

// Reads and validates an index. Shard names must lie inside the index's folder: absolute paths, "..", and symbolic
// links that lead outside are errors. The only exception is the Hugging Face cache, whose snapshots are folders of
// links into a sibling folder "blobs" (models--…/snapshots/<revision>/x -> ../../blobs/<hash>): these links are
// followed.
ShardMap read_shard_index(const std::filesystem::path& index);

}  // namespace fsdp::formats
