// Describes the contents of a folder of any kind, for people and for programs.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace fsdp::convert {

// Returns {"folder", "kind" (kind_name), "tensors": [{"name", "dtype", "shape", "bytes", "parts": [{"file",
// "bytes"}]}], in the order of their names, "files": [{"name", "bytes"}], "bytes": of all tensors, and, if there are
// any, "values": {name: value that is not a tensor}, "groups": of optimizer parameters, and "user"}. The bytes of parts
// count only elements. Reads no tensor. Errors: those of the folder's reader.
nlohmann::json describe(const std::filesystem::path& folder);

// Reads and checks everything. Returns a line for each problem, with file and tensor. Safetensors files of a Hugging
// Face folder have no checksums, so it is only checked that they can be read and have the lengths that their headers
// require.
std::vector<std::string> problems(const std::filesystem::path& folder);

struct Inspection {
  nlohmann::json description;         // see describe
  std::vector<std::string> problems;  // see problems
};
// Both at once: opens the folder once, which takes a second where there are 100,000 tensors. Errors: those of describe.
Inspection inspect(const std::filesystem::path& folder);

}  // namespace fsdp::convert
