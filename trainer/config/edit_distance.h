// How far a mistyped name is from a known one.
#pragma once

#include <cstddef>
#include <string_view>

namespace fsdp::trainer {

// The smallest number of characters to insert, delete, replace or swap with a neighbour that turns `a` into
// `b`.
size_t edit_distance(std::string_view a, std::string_view b);

}  // namespace fsdp::trainer
