// The place of a name that JSON gives among those that are accepted.
#pragma once

#include <algorithm>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace fsdp::planner {

// Returns the index of the value in `names`; nothing for other texts and for values that are no texts.
template <typename Names>
std::optional<size_t> name_index(const Names& names, const nlohmann::json& value) {
  if (!value.is_string()) return std::nullopt;
  const auto found = std::find(names.begin(), names.end(), value.get<std::string>());
  if (found == names.end()) return std::nullopt;
  return static_cast<size_t>(found - names.begin());
}

}  // namespace fsdp::planner
