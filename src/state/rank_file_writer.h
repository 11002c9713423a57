// The file that one rank writes of a checkpoint.
#pragma once

#include <filesystem>
#include <functional>
#include <vector>

#include "checkpoint/manifest.h"
#include "state/pieces.h"

namespace fsdp {

// Writes the pieces; the file is complete and on the disk on return. `after_each`, if there is one, is called after
// each piece: what it was read from may leave memory.
checkpoint::RankFile write_rank_file(const std::filesystem::path& path, const std::vector<Piece>& pieces,
                                     const std::function<void()>& after_each);

}  // namespace fsdp
