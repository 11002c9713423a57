// What a checkpoint folder of torch.distributed.checkpoint holds, from its .metadata file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "checkpoint/tensor_info.h"

namespace fsdp::checkpoint {

// Bytes of a file of the folder. The path is relative, at most 4096 bytes long, and does not lead out of the folder by
// its names; offset and length are not negative and their sum fits, but the file may be shorter.
struct DcpLocation {
  std::string path;
  int64_t offset = 0;
  int64_t length = 0;  // of what is stored, a whole torch.save archive for tensors unless the writer was told otherwise
};

struct DcpChunk {
  std::vector<int64_t> offsets;  // in the tensor, one for each of its dimensions
  std::vector<int64_t> sizes;    // may be 0
  DcpLocation location;
};

struct DcpTensor {
  TensorInfo info;  // of the whole tensor, whose bytes number less than 2^63
  // Within the tensor; each of its elements is in exactly one of them. Those without elements differ in their offsets.
  std::vector<DcpChunk> chunks;
};

using DcpKey = std::variant<std::string, int64_t>;

struct DcpMetadata {
  // By fully qualified name, which is in one of the two.
  std::map<std::string, DcpTensor> tensors;
  std::map<std::string, DcpLocation> bytes;  // pickled values that are no tensors
  // Where the writer's planner found each name in nested dicts and lists; empty if it wrote nothing. The keys, each
  // with a separator, are not longer than the name.
  std::map<std::string, std::vector<DcpKey>> key_paths;
  std::string version;  // empty if none is given
};

// Parses the contents of a .metadata file as FileSystemWriter pickles it. No code named by the file is run.
// Errors begin with `source`; those beyond the pickle's form name the tensor and the chunk, by its offsets.
// Storage entries that belong to no chunk are ignored. Data stored through transforms (compression) and
// layouts other than strided are errors.
DcpMetadata parse_dcp_metadata(std::string_view file, const std::string& source);

// Reads folder/.metadata (at most 1 GiB); errors name the path.
DcpMetadata read_dcp_metadata(const std::filesystem::path& folder);

}  // namespace fsdp::checkpoint
