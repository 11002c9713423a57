// The contents of a checkpoint folder of torch.distributed.checkpoint, from its .metadata file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "formats/common/tensor_info.h"

namespace fsdp::formats {

// A range of bytes in a file of the folder. The path is relative, at most 4096 bytes long, and its components do not
// lead out of the folder. Offset and length are not negative and their sum does not overflow, but the file may be
// shorter.
struct DcpLocation {
  std::string path;
  int64_t offset = 0;
  int64_t length = 0;  // of the stored data: for tensors a torch.save archive, unless the writer was set otherwise
};

struct DcpChunk {
  std::vector<int64_t> offsets;  // in the tensor, one per dimension
  std::vector<int64_t> sizes;    // may be 0
  DcpLocation location;
};

struct DcpTensor {
  TensorInfo info;  // of the whole tensor, which has less than 2^63 bytes
  // The chunks lie within the tensor, and each of its elements is in exactly one of them. Chunks without elements have
  // different offsets.
  std::vector<DcpChunk> chunks;
};

using DcpKey = std::variant<std::string, int64_t>;

struct DcpMetadata {
  // By fully qualified name. Each name is in only one of the two maps.
  std::map<std::string, DcpTensor> tensors;
  std::map<std::string, DcpLocation> bytes;  // pickled values that are not tensors
  // The path in nested dicts and lists under which the writer's planner found each name; empty if the planner wrote
  // none. The keys of a path, each with a separator, are not longer than the name.
  std::map<std::string, std::vector<DcpKey>> key_paths;
  std::string version;  // empty if none is given
};

// Parses the contents of a .metadata file as FileSystemWriter pickles it. Runs no code that the file names. Errors
// begin with `source`; errors beyond the pickle's form name the tensor, and the chunk by its offsets. Storage entries
// that belong to no chunk are ignored. Data stored through transforms (compression) and layouts other than strided are
// errors.
DcpMetadata parse_dcp_metadata(std::string_view file, const std::string& source);

// Reads folder/.metadata (at most 1 GiB); errors name the path.
DcpMetadata read_dcp_metadata(const std::filesystem::path& folder);

}  // namespace fsdp::formats
