// Counts steps of the library instead of measuring time. A step is a basic block that runs on this thread, in the
// layers that are compiled for counting (tests/growth/CMakeLists.txt).
#pragma once

#include <cstdint>

namespace fsdp::growth {

// Returns the steps of this thread since it began.
int64_t steps_of_this_thread();

}  // namespace fsdp::growth
