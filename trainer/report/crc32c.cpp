#include "report/crc32c.h"

#include <array>

namespace fsdp::trainer {

namespace {

constexpr uint32_t kReflectedPolynomial = 0x82F63B78;

constexpr std::array<uint32_t, 256> make_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < table.size(); ++byte) {
    uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) != 0 ? kReflectedPolynomial : 0);
    table[byte] = value;
  }
  return table;
}

constexpr std::array<uint32_t, 256> kTable = make_table();

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  uint32_t value = ~uint32_t{0};
  for (const char c : bytes) value = (value >> 8) ^ kTable[(value ^ static_cast<uint8_t>(c)) & 0xFF];
  return ~value;
}

}  // namespace fsdp::trainer
