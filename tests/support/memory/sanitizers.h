// Tells tests about the sanitizers that they are built with.
#pragma once

#include "base/sanitizers.h"

namespace fsdp::testing {

// Sanitizers reserve address space as they like: RLIMIT_AS cannot be used beside them.
constexpr bool kAddressesCanBeLimited = !FSDP_ADDRESS_SANITIZER && !FSDP_THREAD_SANITIZER;

// Whether the C library can say how much memory is allocated. AddressSanitizer replaces its allocator.
#if defined(__GLIBC__) && !FSDP_ADDRESS_SANITIZER
constexpr bool kAllocatedMemoryIsKnown = true;
#else
constexpr bool kAllocatedMemoryIsKnown = false;
#endif

}  // namespace fsdp::testing
