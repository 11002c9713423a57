// Replaces whole files.
#pragma once

#include <string>
#include <string_view>

namespace fsdp::trainer {

// Writes a whole file under a temporary name and then renames it to `path`. Errors name `path`.
void replace_file(const std::string& path, std::string_view bytes);

}  // namespace fsdp::trainer
