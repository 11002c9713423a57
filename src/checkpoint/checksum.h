// Checksums of stored bytes: XXH3 with 64 bits, which finds damage, not forgery.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp::checkpoint {

// Tensors are checked in blocks of this many bytes, counted from their first, so that a part can be read, and checked,
// by itself.
constexpr size_t kChecksumBlock = size_t{1} << 20;

uint64_t checksum_of(std::string_view bytes);

// How many blocks this many bytes have.
inline size_t checksum_blocks(uint64_t bytes) {
  return static_cast<size_t>(bytes / kChecksumBlock + (bytes % kChecksumBlock != 0 ? 1 : 0));
}

// 16 hexadecimal digits for each, lower case, in a row.
std::string checksums_text(const std::vector<uint64_t>& checksums);
// The reverse; false when `text` is something else.
bool parse_checksums(std::string_view text, std::vector<uint64_t>& checksums);

// The checksums of bytes that come in pieces.
class BlockChecksums {
 public:
  BlockChecksums();
  ~BlockChecksums();
  BlockChecksums(const BlockChecksums&) = delete;
  BlockChecksums& operator=(const BlockChecksums&) = delete;

  void add(std::string_view bytes);
  // Of all blocks, the last one perhaps shorter; to be called once.
  std::vector<uint64_t> finish();

 private:
  void end_block();

  void* state_;
  size_t in_block_ = 0;
  std::vector<uint64_t> checksums_;
};

}  // namespace fsdp::checkpoint
