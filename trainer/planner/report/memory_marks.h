// How far the figures of a plan's memory can be trusted.
#pragma once

#include <nlohmann/json.hpp>

namespace fsdp::planner {

// Adds "marks" to the result of memory_document: of each figure whether it is "exact" (equal to a real rank's, to the
// byte) or "modelled".
void add_memory_marks(nlohmann::ordered_json& memory);

}  // namespace fsdp::planner
