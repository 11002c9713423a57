// Counts what the library does instead of how long it takes: basic blocks that run on this thread, in the layers that
// are compiled for it (tests/growth/CMakeLists.txt).
#pragma once

#include <cstdint>

namespace fsdp::growth {

// Since the thread began.
int64_t steps_of_this_thread();

}  // namespace fsdp::growth
