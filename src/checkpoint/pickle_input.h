// The bytes of a pickle, taken in order, with the frames that group them.
#pragma once

#include <c10/util/Exception.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace fsdp::checkpoint {

bool is_utf8(std::string_view text);

class PickleInput {
 public:
  PickleInput(std::string_view bytes, const std::string& source) : bytes_(bytes), source_(source) {}

  // An error at the offset of the current opcode.
  template <typename... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    fail_at(opcode_, parts...);
  }
  template <typename... Parts>
  [[noreturn]] void fail_at(uint64_t offset, const Parts&... parts) const {
    TORCH_CHECK(false, source_, ": byte ", offset, ": ", parts...);
  }

  uint64_t opcode_offset() const { return opcode_; }
  size_t left() const { return bytes_.size() - at_; }

  uint8_t next_opcode();
  // Errors unless the frame, or the file outside of frames, holds so many bytes more.
  std::string_view take(uint64_t count);
  // An unsigned integer of this many bytes (at most 8), little endian.
  uint64_t take_unsigned(size_t width);
  // A line without its '\n'.
  std::string_view take_line();
  // Takes a frame's length; the frame ends with an opcode, and no other begins within it.
  void begin_frame();

 private:
  size_t end() const { return frame_end_.value_or(bytes_.size()); }

  std::string_view bytes_;
  const std::string& source_;
  size_t at_ = 0;
  size_t opcode_ = 0;
  std::optional<size_t> frame_end_;
};

}  // namespace fsdp::checkpoint
