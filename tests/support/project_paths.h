// Where tests find what is no test's own.
#pragma once

#include <string>

namespace fsdp::testing {

std::string source_folder();
std::string build_folder();

}  // namespace fsdp::testing
