// The requirements that every fuzz target checks for a reader.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/testing/safetensors_bytes.h"
#include "support/files/temporary_folder.h"

namespace fsdp::fuzz {

using testing::TemporaryFolder;

inline std::string_view text_of(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

// Calls `read`, which reads an input of `bytes` bytes and uses the result. It may throw c10::Error (or
// trainer::ConfigError) with a message that begins with `source`, and may use memory in proportion to the input.
// Anything else ends the process, and libFuzzer reports it as a finding.
void check_reader(size_t bytes, const std::string& source, const std::function<void()>& read);

// Ends the process with a message unless `condition` is true.
void require(bool condition, const char* what);

// Splits an input into `count` files, at lines that read "%%%%". Missing files are empty. The last file contains all of
// the remaining input, including further such lines.
std::vector<std::string> split_files(std::string_view input, size_t count);
std::string join_files(const std::vector<std::string>& files);

// Returns the input itself. If it begins with a brace, returns a safetensors file instead, whose header, line feed and
// data are the input: mutations then need not guess the length of the header.
std::string safetensors_file(std::string_view input);

// Returns a manifest with this content and the matching checksum.
std::string with_checksum(std::string_view content);

}  // namespace fsdp::fuzz
