// Writes pickles in which nothing that occurs often is written often.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>

namespace fsdp::formats {

// Builds a pickle piece by piece from the opcodes of pickle_writer.h. A name or a text that occurs again refers to its
// first occurrence through the pickle's memo, as in pickles of Python: readers look a class up once, and the file is
// several times smaller where many objects have the same attributes.
class SharedPickle {
 public:
  SharedPickle();

  // Adds whole opcodes. An error: opcodes that pickle_writer.h does not write, among them those of the memo.
  void add(std::string_view opcodes);

  // Ends the pickle and returns it.
  std::string finish() &&;

 private:
  std::string file_;
  std::unordered_map<std::string, size_t> memo_;  // index in the pickle's memo, by the opcode of a name or a text
};

}  // namespace fsdp::formats
