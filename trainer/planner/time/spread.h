// The time that a step takes longer because its slowest rank comes last.
#pragma once

#include <cstdint>

namespace fsdp::planner {

// Returns the mean of the largest of `count` independent values of the standard normal distribution.
double mean_largest_normal(int64_t count);

}  // namespace fsdp::planner
