// The distance between a mistyped name and a known one.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp::trainer {

// Returns the smallest number of insertions, deletions, replacements and swaps of neighboring characters that turns `a`
// into `b`.
size_t edit_distance(std::string_view a, std::string_view b);

// Returns the known name with the smallest edit distance to `name`, unless that distance is so large (more than a third
// of the name's letters) that the user hardly meant it. Then returns the one that contains `name`, if exactly one does.
std::optional<std::string> similar_name(const std::string& name, const std::vector<std::string>& known);

}  // namespace fsdp::trainer
