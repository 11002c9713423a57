// Checks that the chunks of a tensor cover it exactly once.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "formats/dcp/dcp_metadata.h"

namespace fsdp::formats {

// Returns unset if each element of a tensor of this shape is in exactly one of the chunks, which must lie within the
// tensor. Otherwise describes the problem, with an element that has it, or says that the chunks are more than
// supported. Takes n log n time for n chunks.
std::optional<std::string> coverage_problem(const std::vector<int64_t>& shape, const std::vector<DcpChunk>& chunks);

}  // namespace fsdp::formats
