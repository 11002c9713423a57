// The checksum of zip archives.
#pragma once

#include <cstdint>
#include <string_view>

namespace fsdp::checkpoint {

// CRC-32 (polynomial 0x04c11db7, reflected, as in zip and PNG) of bytes whose beginning has the CRC-32 `before`;
// 0: of these bytes alone. Finds damage, not forgery.
uint32_t crc32_of(std::string_view bytes, uint32_t before = 0);

}  // namespace fsdp::checkpoint
