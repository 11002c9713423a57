// Files that belong to a model and are copied unchanged: config.json and the tokenizer's files.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace fsdp::convert {

// Returns the names of such files in the folder.
std::vector<std::string> companions(const std::filesystem::path& folder);

void copy_companions(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace fsdp::convert
