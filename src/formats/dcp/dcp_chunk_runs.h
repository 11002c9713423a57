// Maps the elements of a chunk to their positions in its tensor, both in row-major order.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "formats/dcp/dcp_metadata.h"

namespace fsdp::formats {

// Elements that are contiguous both in the tensor and in the chunk.
struct ChunkRun {
  int64_t in_tensor = 0;  // position of the first element
  int64_t in_chunk = 0;
  int64_t count = 0;
};

// Calls `visit` for the runs of a chunk that have elements in [begin, end) of the tensor of this shape, clipped to that
// range: in order, and in the smallest possible number of runs. A chunk without elements has no runs.
void for_each_run(const std::vector<int64_t>& shape, const DcpChunk& chunk, int64_t begin, int64_t end,
                  const std::function<void(const ChunkRun&)>& visit);

}  // namespace fsdp::formats
