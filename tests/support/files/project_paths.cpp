#include "support/files/project_paths.h"

namespace fsdp::testing {

std::string source_folder() { return FSDP_SOURCE_DIR; }

std::string build_folder() { return FSDP_BUILD_DIR; }

}  // namespace fsdp::testing
