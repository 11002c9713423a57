// Numbers of bytes as people write them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace fsdp::trainer {

// "5GB", "200MiB", "1000": bytes. Units are powers of 1000 (kB or KB, MB, GB, TB) or of 1024 (KiB, MiB, GiB, TiB).
// Unset for anything else, for 0 and for more than 2^63-1.
std::optional<int64_t> parse_byte_count(const std::string& text);

// The same in words, for errors.
inline const std::string kByteCounts =
    "a whole number of bytes above 0, such as 5GB, 200MiB or 1000000; units are kB, MB, GB, TB and KiB, MiB, GiB, TiB";

}  // namespace fsdp::trainer
