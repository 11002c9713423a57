// Memory of this process, on the host and on a device.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>

namespace fsdp::trainer {

// The largest resident set so far, in bytes: all pages in memory, those of mapped files included.
int64_t peak_memory_bytes();

// The most bytes that tensors on `device` took at a time so far in this process; none for the CPU, and where LibTorch's
// allocator for the device does not count.
std::optional<int64_t> peak_device_memory_bytes(c10::Device device);

// Keeps memory that was freed for the allocations that follow, as long as the process lives: a training step makes and
// frees the same large tensors over and over, and by default glibc gives them back to the system, which clears each
// page again at its next use. Has an effect with glibc's allocator only. To be called before the first large
// allocation.
void keep_freed_memory();

}  // namespace fsdp::trainer
