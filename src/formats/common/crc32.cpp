#include "formats/common/crc32.h"

#include <array>
#include <bit>
#include <cstddef>
#include <cstring>

namespace fsdp::formats {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr size_t kStride = 8;  // bytes per step
using Tables = std::array<std::array<uint32_t, 256>, kStride>;

// tables[k][b]: the effect of byte b on the checksum if k more bytes follow it.
constexpr Tables make_tables() {
  Tables tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) != 0 ? 0xedb88320u : 0u);
    tables[0][byte] = value;
  }
  for (size_t k = 1; k < kStride; ++k) {
    for (size_t byte = 0; byte < 256; ++byte) {
      const uint32_t value = tables[k - 1][byte];
      tables[k][byte] = (value >> 8) ^ tables[0][value & 0xff];
    }
  }
  return tables;
}

constexpr Tables kTables = make_tables();

}  // namespace

uint32_t crc32_of(std::string_view bytes, uint32_t before) {
  uint32_t value = ~before;
  for (; bytes.size() >= kStride; bytes.remove_prefix(kStride)) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data(), kStride);
    word ^= value;
    value = 0;
    for (size_t k = 0; k < kStride; ++k) value ^= kTables[kStride - 1 - k][(word >> (8 * k)) & 0xff];
  }
  for (const char byte : bytes) value = (value >> 8) ^ kTables[0][(value ^ static_cast<uint8_t>(byte)) & 0xff];
  return ~value;
}

}  // namespace fsdp::formats
