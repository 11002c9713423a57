// Memory that is allocated on a device by this process.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>

namespace fsdp::base {

// Returns the bytes that are allocated now: on the CPU by glibc's malloc (tensors come from it unless the program has
// replaced it), elsewhere by LibTorch's caching allocator. Returns nullopt if the number is not known. Takes time:
// meant for traces, not for every step.
std::optional<int64_t> allocated_bytes(c10::Device device);

// Returns the peak of the bytes that tensors on a device other than the CPU have taken so far. Returns nullopt for the
// CPU, or if the number is not known.
std::optional<int64_t> peak_allocated_bytes(c10::Device device);

}  // namespace fsdp::base
