// Writes the file of one rank in a checkpoint.
#pragma once

#include <filesystem>
#include <functional>
#include <vector>

#include "formats/own/manifest.h"
#include "state/pieces.h"

namespace fsdp::state {

// Writes the pieces; on return the file is complete and on the disk. `after_each`, if set, is called after each piece,
// when the memory that the piece was read from may be released.
formats::RankFile write_rank_file(const std::filesystem::path& path, const std::vector<Piece>& pieces,
                                  const std::function<void()>& after_each);

}  // namespace fsdp::state
