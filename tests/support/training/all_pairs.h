// Runs that cover every pair of values of several factors.
#pragma once

#include <vector>

namespace fsdp::testing {

// A run: for each factor, the index of its value.
using Choice = std::vector<int>;

// Returns runs in which any two values of different factors occur together at least once. `sizes`: the number of values
// of each factor, of which there are at least two.
std::vector<Choice> all_pairs(const std::vector<int>& sizes);

}  // namespace fsdp::testing
