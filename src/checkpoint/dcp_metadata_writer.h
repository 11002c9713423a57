// The contents of a .metadata file.
#pragma once

#include <string>

#include "checkpoint/dcp_metadata.h"

namespace fsdp::checkpoint {

// As FileSystemWriter pickles it; parse_dcp_metadata reads the same from it.
std::string dcp_metadata_text(const DcpMetadata& metadata);

}  // namespace fsdp::checkpoint
