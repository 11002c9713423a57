// A digest by which ranks compare texts without sending them.
#pragma once

#include <string>

namespace fsdp {

// XXH3 with 128 bits, in hexadecimal: 32 characters. The same on all machines.
std::string digest_of(const std::string& text);

}  // namespace fsdp
