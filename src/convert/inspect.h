// What a folder of any kind holds, for people and for programs.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace fsdp::convert {

// {"folder", "kind" (kind_name), "tensors": [{"name", "dtype", "shape", "bytes", "parts": [{"file", "bytes"}]}], in the
// order of their names, "files": [{"name", "bytes"}], "bytes": of all tensors, and, where there are any, "values":
// {name: value that is no tensor}, "groups": of optimizer parameters, and "user"}. Parts' bytes are those of elements.
// Reads no tensor. Errors: as the folder's reader gives them.
nlohmann::json describe(const std::filesystem::path& folder);

// Reads and checks everything; a line for each thing that is wrong, with file and tensor. Safetensors files of a
// Hugging Face folder have no checksums: of them it is checked that they can be read and have the lengths their headers
// need.
std::vector<std::string> problems(const std::filesystem::path& folder);

}  // namespace fsdp::convert
