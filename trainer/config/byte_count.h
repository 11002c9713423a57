// Parses numbers of bytes as people write them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace fsdp::trainer {

// Returns the number of bytes that a text such as "5GB", "200MiB" or "1000" stands for. Units are powers of 1000 (kB or
// KB, MB, GB, TB) or of 1024 (KiB, MiB, GiB, TiB). Returns nothing for any other text, for 0 and for more than 2^63-1.
std::optional<int64_t> parse_byte_count(const std::string& text);

// The accepted numbers of bytes in words, for errors.
inline const std::string kByteCounts =
    "a whole number of bytes above 0, such as 5GB, 200MiB or 1000000; units are kB, MB, GB, TB and KiB, MiB, GiB, TiB";

}  // namespace fsdp::trainer
