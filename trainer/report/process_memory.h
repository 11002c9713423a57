// Memory of this process on the host.
#pragma once

#include <cstdint>

namespace fsdp::trainer {

// The largest resident set so far, in bytes: all pages in memory, those of mapped files included.
int64_t peak_memory_bytes();

// Keeps memory that was freed for the allocations that follow, as long as the process lives: a training step makes and
// frees the same large tensors over and over, and by default glibc gives them back to the system, which clears each
// page again at its next use. Has an effect with glibc's allocator only. To be called before the first large
// allocation.
void keep_freed_memory();

}  // namespace fsdp::trainer
