#include "reader_check.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "config/errors.h"
#include "formats/common/checksum.h"
#include "memory_budget.h"

namespace fsdp::fuzz {
namespace {

// The factor is large because pickles share values: a name takes about thirty bytes in a .metadata file, but may have
// the longest path and sizes of 64 dimensions.
constexpr size_t kBaseBytes = size_t{1} << 18, kBytesPerByte = 512;

constexpr std::string_view kSeparator = "\n%%%%\n";

void check_message(std::string_view message, const std::string& source) {
  if (!message.starts_with(source)) {
    std::fprintf(stderr, "an error that does not begin with %s: %.*s\n", source.c_str(),
                 static_cast<int>(message.size()), message.data());
  }
  require(message.starts_with(source), "an error names its file");
}

}  // namespace

void require(bool condition, const char* what) {
  if (!condition) {
    std::fprintf(stderr, "FINDING: this does not hold: %s\n", what);
    std::abort();
  }
}

void check_reader(size_t bytes, const std::string& source, const std::function<void()>& read) {
  const MemoryBudget budget(kBaseBytes + kBytesPerByte * bytes);
  try {
    read();
  } catch (const c10::Error& error) {
    check_message(error.what_without_backtrace(), source);
  } catch (const trainer::ConfigError& error) {
    check_message(error.what(), source);
  }
}

std::vector<std::string> split_files(std::string_view input, size_t count) {
  std::vector<std::string> files;
  while (files.size() + 1 < count) {
    const size_t end = std::min(input.find(kSeparator), input.size());
    files.emplace_back(input.substr(0, end));
    input.remove_prefix(std::min(input.size(), end + kSeparator.size()));
  }
  files.emplace_back(input);
  return files;
}

std::string join_files(const std::vector<std::string>& files) {
  std::string input;
  for (const std::string& file : files) input += (&file == &files.front() ? "" : std::string(kSeparator)) + file;
  return input;
}

std::string safetensors_file(std::string_view input) {
  if (!input.starts_with('{')) return std::string(input);
  const size_t end = std::min(input.find('\n'), input.size());
  return formats::safetensors_bytes(std::string(input.substr(0, end)),
                                    std::string(input.substr(std::min(end + 1, input.size()))));
}

std::string with_checksum(std::string_view content) {
  return c10::str("{\"checksum\":\"", formats::checksums_text({formats::checksum_of(content)}),
                  "\",\"content\":", content, "}\n");
}

}  // namespace fsdp::fuzz
