// The time of a plan for people to read.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace fsdp::planner {

// Formats the result of time_document. `last_step`: its number.
std::string time_text(const nlohmann::ordered_json& time, int last_step);

}  // namespace fsdp::planner
