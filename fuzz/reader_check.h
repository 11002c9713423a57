// What every fuzz target asks of a reader.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/test_files.h"

namespace fsdp::fuzz {

using checkpoint::TemporaryFolder;

inline std::string_view text_of(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

// Calls `read`, which reads an input of `bytes` bytes and uses what it got. It may throw c10::Error (or
// trainer::ConfigError) with a message that begins with `source`, and may have memory in proportion to the input.
// Anything else ends the process: libFuzzer reports it as a finding.
void check_reader(size_t bytes, const std::string& source, const std::function<void()>& read);

// Ends the process with a message unless `condition` is true.
void require(bool condition, const char* what);

// Several files in one input: the parts between lines that read "%%%%"; always `count` of them, those that are missing
// empty, and the last one with whatever follows.
std::vector<std::string> split_files(std::string_view input, size_t count);
std::string join_files(const std::vector<std::string>& files);

// The input itself or, where it begins with a brace, a safetensors file of which it holds the header, a line feed and
// the data: mutations then need not guess the header's length.
std::string safetensors_file(std::string_view input);

// A manifest with this content and the checksum that belongs to it.
std::string with_checksum(std::string_view content);

}  // namespace fsdp::fuzz
