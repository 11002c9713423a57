// A .metadata file of few bytes that makes its reader keep much memory.
#pragma once

#include <string>

namespace fsdp::fuzz {

// Returns a .metadata file with `names` tensors of 64 dimensions, each in one chunk. They share all that a pickle can
// share: the shape, the chunk and the place in a file, whose path has `path_bytes` bytes.
std::string dense_metadata(int names, size_t path_bytes);

}  // namespace fsdp::fuzz
