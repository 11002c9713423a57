// A digest with which ranks compare texts without sending them.
#pragma once

#include <string>

namespace fsdp::base {

// Returns the 128-bit XXH3 hash in hexadecimal: 32 characters, the same on all machines.
std::string digest_of(const std::string& text);

}  // namespace fsdp::base
