// Bounds of the memory for units that are gathered at the same time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace fsdp::schedule {

class ScheduledUnit;

// Returns the largest sum of bytes of `at_a_time` different units that follow one another in `order`, the order of
// visits in a pass. Units that stay gathered after a pass have memory of their own and do not count. `nbytes`: returns
// the bytes that gathering a unit takes.
int64_t largest_window(const std::vector<ScheduledUnit*>& order, size_t at_a_time,
                       const std::function<int64_t(const ScheduledUnit&)>& nbytes);

}  // namespace fsdp::schedule
