// A .metadata file that makes its reader keep much for few bytes.
#pragma once

#include <string>

namespace fsdp::fuzz {

// `names` tensors of 64 dimensions in one chunk each, which share all that a pickle can share: the shape, the chunk and
// a place in a file with a path of `path_bytes`.
std::string dense_metadata(int names, size_t path_bytes);

}  // namespace fsdp::fuzz
