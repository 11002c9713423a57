// How much memory a device has handed out to this process.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>

namespace fsdp {

// Bytes that are allocated now: on the CPU by glibc's malloc, which tensors come from unless a program has replaced it;
// elsewhere by LibTorch's caching allocator. None where that cannot be known. Takes time: for traces, not for steps.
std::optional<int64_t> allocated_bytes(c10::Device device);

// The most that tensors on a device other than the CPU took so far. None on the CPU, or where it cannot be known.
std::optional<int64_t> peak_allocated_bytes(c10::Device device);

}  // namespace fsdp
