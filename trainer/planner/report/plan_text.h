// A plan for people to read.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace fsdp::planner {

// Formats the result of make_plan, with "changes" (single_changes.h) if the document has them.
std::string plan_text(const nlohmann::ordered_json& plan);

// Returns the first line of it: the model, the cluster, the rank and the steps.
std::string plan_head(const nlohmann::ordered_json& plan);

}  // namespace fsdp::planner
