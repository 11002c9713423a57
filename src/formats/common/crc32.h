// The checksum of zip archives.
#pragma once

#include <cstdint>
#include <string_view>

namespace fsdp::formats {

// Returns the CRC-32 (polynomial 0x04c11db7, reflected, as in zip and PNG) of bytes that continue data whose CRC-32 is
// `before`; 0: of these bytes alone. Detects damage, not forgery.
uint32_t crc32_of(std::string_view bytes, uint32_t before = 0);

}  // namespace fsdp::formats
