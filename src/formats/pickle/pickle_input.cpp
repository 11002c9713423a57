#include "formats/pickle/pickle_input.h"

namespace fsdp::formats {
namespace {

// Returns the length of the UTF-8 sequence that `text` begins with, or 0 if there is none.
size_t utf8_sequence(std::string_view text) {
  const auto byte = [&](size_t at) { return static_cast<uint8_t>(text[at]); };
  const uint8_t first = byte(0);
  if (first < 0x80) return 1;
  const size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < length) return 0;
  for (size_t at = 1; at < length; ++at) {
    if ((byte(at) & 0xc0) != 0x80) return 0;
  }
  const bool overlong = (first == 0xe0 && byte(1) < 0xa0) || (first == 0xf0 && byte(1) < 0x90);
  const bool no_character = (first == 0xed && byte(1) >= 0xa0) || (first == 0xf4 && byte(1) >= 0x90);
  return overlong || no_character ? 0 : length;
}

}  // namespace

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const size_t length = utf8_sequence(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

uint8_t PickleInput::next_opcode() {
  if (frame_end_ == at_) frame_end_.reset();
  opcode_ = at_;
  if (left() == 0) fail("the pickle ends without its STOP: truncated file");
  return static_cast<uint8_t>(take(1).front());
}

std::string_view PickleInput::take(uint64_t count) {
  if (count > end() - at_) {
    fail(count, " bytes are needed, but ", end() - at_, " are left of the ", frame_end_ ? "frame" : "file");
  }
  const std::string_view taken = bytes_.substr(at_, count);
  at_ += count;
  return taken;
}

uint64_t PickleInput::take_unsigned(size_t width) {
  uint64_t value = 0;
  size_t shift = 0;
  for (const char byte : take(width)) {
    value |= uint64_t{static_cast<uint8_t>(byte)} << shift;
    shift += 8;
  }
  return value;
}

std::string_view PickleInput::take_line() {
  const size_t length = bytes_.substr(at_, end() - at_).find('\n');
  if (length == std::string_view::npos) fail("a line does not end within the ", frame_end_ ? "frame" : "file");
  return take(length + 1).substr(0, length);
}

void PickleInput::begin_frame() {
  if (frame_end_) fail("a frame begins within another one, which ends at byte ", *frame_end_);
  const uint64_t length = take_unsigned(8);
  if (length > left()) fail("a frame of ", length, " bytes, but ", left(), " are left of the file: truncated file");
  frame_end_ = at_ + length;
}

}  // namespace fsdp::formats
