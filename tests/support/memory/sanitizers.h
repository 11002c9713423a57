// Tells tests about the sanitizers that they are built with.
#pragma once

namespace fsdp::testing {

// Sanitizers reserve address space as they like: RLIMIT_AS cannot be used beside them.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kAddressesCanBeLimited = false;
#else
constexpr bool kAddressesCanBeLimited = true;
#endif

// Whether the C library can say how much memory is allocated. AddressSanitizer replaces its allocator.
#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__)
constexpr bool kAllocatedMemoryIsKnown = true;
#else
constexpr bool kAllocatedMemoryIsKnown = false;
#endif

}  // namespace fsdp::testing
