#include "base/text_digest.h"

#include <cstdio>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace fsdp::base {

std::string digest_of(std::string_view text) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits(text.data(), text.size()));
  std::string digits;
  for (const unsigned char byte : canonical.digest) {
    char two[3];
    std::snprintf(two, sizeof(two), "%02x", byte);
    digits += two;
  }
  return digits;
}

}  // namespace fsdp::base
