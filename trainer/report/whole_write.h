// Appending to a file, in whole pieces.
#pragma once

#include <string>
#include <string_view>

namespace fsdp::trainer {

// Hands all bytes to the operating system. Errors name `path`.
void write_whole(int descriptor, std::string_view bytes, const std::string& path);

}  // namespace fsdp::trainer
