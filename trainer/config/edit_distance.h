// The distance between a mistyped name and a known one.
#pragma once

#include <cstddef>
#include <string_view>

namespace fsdp::trainer {

// Returns the smallest number of insertions, deletions, replacements and swaps of neighboring characters that turns `a`
// into `b`.
size_t edit_distance(std::string_view a, std::string_view b);

}  // namespace fsdp::trainer
