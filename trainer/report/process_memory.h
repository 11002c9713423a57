// Memory of this process.
#pragma once

#include <cstdint>

namespace fsdp::trainer {

// The largest resident set so far, in bytes: all pages in memory, those of mapped files included.
int64_t peak_memory_bytes();

}  // namespace fsdp::trainer
