// The bytes of a pickle, read in order, with the frames that group them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/check.h"

namespace fsdp::formats {

bool is_utf8(std::string_view text);

class PickleInput {
 public:
  PickleInput(std::string_view bytes, const std::string& source) : bytes_(bytes), source_(source) {}

  // Throws an error at the offset of the current opcode.
  template <typename... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    fail_at(opcode_, parts...);
  }
  template <typename... Parts>
  [[noreturn]] void fail_at(uint64_t offset, const Parts&... parts) const {
    FSDP_CHECK_WITH(FileError, false, source_, ": byte ", offset, ": ", parts...);
  }

  uint64_t opcode_offset() const { return opcode_; }
  size_t left() const { return bytes_.size() - at_; }

  uint8_t next_opcode();
  // Returns the next `count` bytes. Throws unless the frame, or outside of frames the file, has so many bytes left.
  std::string_view take(uint64_t count);
  // Reads an unsigned little-endian integer of `width` bytes (at most 8).
  uint64_t take_unsigned(size_t width);
  // Reads a line and returns it without its '\n'.
  std::string_view take_line();
  // Reads a frame's length. The frame must end with an opcode, and no other frame may begin within it.
  void begin_frame();

 private:
  size_t end() const { return frame_end_.value_or(bytes_.size()); }

  std::string_view bytes_;
  const std::string& source_;
  size_t at_ = 0;
  size_t opcode_ = 0;
  std::optional<size_t> frame_end_;
};

}  // namespace fsdp::formats
