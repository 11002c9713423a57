// Pinned host memory over a whole run, as LibTorch's allocator for it holds it.
#pragma once

#include <cstdint>

#include "planner/tape/tape.h"

namespace fsdp::planner {

// Returns the bytes of pinned memory at the end of the tape. Blocks are rounded up to powers of two, reused by requests
// of the same power, and never given back to the system.
// Source: at/core/CachingHostAllocator.h of LibTorch 2.13.
int64_t replay_pinned_memory(const Tape& tape);

}  // namespace fsdp::planner
