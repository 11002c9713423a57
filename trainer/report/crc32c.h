// CRC-32C (Castagnoli), as RFC 3720 (iSCSI) defines it.
#pragma once

#include <cstdint>
#include <string_view>

namespace fsdp::trainer {

uint32_t crc32c(std::string_view bytes);

}  // namespace fsdp::trainer
