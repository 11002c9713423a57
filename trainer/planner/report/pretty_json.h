// JSON for people to read.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace fsdp::planner {

// Formats with two spaces for each level, and lists of single values on one line. Text that is no UTF-8 is replaced.
std::string pretty_json(const nlohmann::ordered_json& value);

}  // namespace fsdp::planner
