// A digest with which ranks compare texts and other bytes without sending them.
#pragma once

#include <string>
#include <string_view>

namespace fsdp::base {

// Returns the 128-bit XXH3 hash in hexadecimal: 32 characters, the same on all machines.
std::string digest_of(std::string_view text);

}  // namespace fsdp::base
