// Numbers of bytes as people write them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace fsdp::trainer {

// "5GB", "200MiB", "1000": bytes. Units are powers of 1000 (kB, MB, GB, TB) or of 1024 (KiB, MiB, GiB, TiB). Unset for
// anything else, for 0 and for more than 2^63-1.
std::optional<int64_t> parse_byte_count(const std::string& text);

}  // namespace fsdp::trainer
