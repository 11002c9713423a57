// Writes the contents of a .metadata file.
#pragma once

#include <string>

#include "formats/dcp/dcp_metadata.h"

namespace fsdp::formats {

// Returns the metadata as FileSystemWriter pickles it; parse_dcp_metadata reads equal metadata from it.
std::string dcp_metadata_text(const DcpMetadata& metadata);

}  // namespace fsdp::formats
