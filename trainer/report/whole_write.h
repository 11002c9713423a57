// Writing files in whole pieces.
#pragma once

#include <string>
#include <string_view>

namespace fsdp::trainer {

// Hands all bytes to the operating system. Errors name `path`.
void write_whole(int descriptor, std::string_view bytes, const std::string& path);

// Writes a whole file under another name, and gives it its own then. Errors name `path`.
void replace_file(const std::string& path, std::string_view bytes);

}  // namespace fsdp::trainer
