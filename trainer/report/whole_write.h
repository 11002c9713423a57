// Writing files in whole pieces.
#pragma once

#include <string>
#include <string_view>

namespace fsdp::trainer {

// Writes a whole file under another name, and gives it its own then. Errors name `path`.
void replace_file(const std::string& path, std::string_view bytes);

}  // namespace fsdp::trainer
