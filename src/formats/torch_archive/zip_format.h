// The constants of zip archives, for their reader and writer: signatures, lengths and positions of fields.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace fsdp::formats::zip {

constexpr uint32_t kLocalSignature = 0x04034b50, kCentralSignature = 0x02014b50, kEndSignature = 0x06054b50,
                   kEnd64Signature = 0x06064b50, kLocator64Signature = 0x07064b50;
constexpr size_t kLocalBytes = 30, kCentralBytes = 46, kEndBytes = 22, kEnd64Bytes = 56, kLocator64Bytes = 20;
constexpr uint16_t kSizesFollowData = 0x0008, kUtf8Names = 0x0800;  // flags
constexpr uint16_t kStored = 0;                                     // method: not compressed
constexpr uint16_t kExtra64 = 0x0001;                               // extra field with 64-bit numbers
constexpr uint32_t kIn64 = 0xffffffff;                              // the number is in a 64-bit field

// Returns the little-endian number at offset `at` of a header, which must be long enough.
template <typename Number>
Number number_at(std::string_view header, size_t at) {
  Number number = 0;
  std::memcpy(&number, header.substr(at).data(), sizeof(number));
  return number;
}

template <typename Number>
void add_number(std::string& header, Number number) {
  header.append(reinterpret_cast<const char*>(&number), sizeof(number));
}

}  // namespace fsdp::formats::zip
