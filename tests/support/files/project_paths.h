// Paths of the project's source and build folders.
#pragma once

#include <string>

namespace fsdp::testing {

std::string source_folder();
std::string build_folder();

}  // namespace fsdp::testing
