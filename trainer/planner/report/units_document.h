// The units of a plan as JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace fsdp::planner {

// Reads the text of Diagnostics::describe_units. Returns a list with "name", "strategy", "parameters" (elements without
// padding), "shard_bytes" (on each rank) and "gathered_bytes" (both with padding) of each unit.
nlohmann::ordered_json units_document(const std::string& description);

}  // namespace fsdp::planner
