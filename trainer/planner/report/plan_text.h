// A plan for people to read.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace fsdp::planner {

// Formats the result of make_plan, with "changes" (single_changes.h) if the document has them.
std::string plan_text(const nlohmann::ordered_json& plan);

// Returns the first line of it: the model, the cluster, the rank and the steps.
// "; times of the stack fsdp1", or nothing for this library. The memory is always this library's.
std::string stack_text(const nlohmann::ordered_json& plan);

std::string plan_head(const nlohmann::ordered_json& plan);

// Returns a line for the device and for the host, as far as their capacities are known: "fits: 5.30 GiB of …".
// `memory`: plan["memory"].
std::string verdict_text(const nlohmann::ordered_json& memory);

}  // namespace fsdp::planner
