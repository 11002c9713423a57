// Checksums of stored bytes: XXH3 with 64 bits, which detects damage, not forgery.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp::formats {

// Tensors are checked in blocks of this many bytes, counted from their first byte, so that a part can be read and
// checked on its own.
constexpr size_t kChecksumBlock = size_t{1} << 20;

uint64_t checksum_of(std::string_view bytes);

// Returns the number of blocks that this many bytes take.
inline size_t checksum_blocks(uint64_t bytes) {
  return static_cast<size_t>(bytes / kChecksumBlock + (bytes % kChecksumBlock != 0 ? 1 : 0));
}

// Returns the checksums as text: 16 lower-case hexadecimal digits each, without separators.
std::string checksums_text(const std::vector<uint64_t>& checksums);
// Parses the text that checksums_text returns. Returns false if `text` has another form.
bool parse_checksums(std::string_view text, std::vector<uint64_t>& checksums);

// Computes the checksums of bytes that arrive in pieces.
class BlockChecksums {
 public:
  BlockChecksums();
  ~BlockChecksums();
  BlockChecksums(const BlockChecksums&) = delete;
  BlockChecksums& operator=(const BlockChecksums&) = delete;

  void add(std::string_view bytes);
  // Returns the checksums of all blocks, of which the last one may be shorter. Must be called only once.
  std::vector<uint64_t> finish();

 private:
  void end_block();

  void* state_;
  size_t in_block_ = 0;
  std::vector<uint64_t> checksums_;
};

}  // namespace fsdp::formats
