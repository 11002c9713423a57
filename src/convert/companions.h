// Files that go with a model and are copied as they are: config.json, and the tokenizer's.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace fsdp::convert {

// Names of those that are in the folder.
std::vector<std::string> companions(const std::filesystem::path& folder);

void copy_companions(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace fsdp::convert
