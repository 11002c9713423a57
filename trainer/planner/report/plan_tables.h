// The tables of a plan's page.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "report_page/comparison.h"

namespace fsdp::planner {

// "12,345,678"
std::string grouped_digits(int64_t number);

// All take parts of the result of make_plan.

// The whole of a device's memory, or of a rank's host memory.
trainer::Table totals_table(const nlohmann::ordered_json& plan);
// The purposes of memory at the peak of each step. `use`: memory["device"] or memory["host"].
trainer::Table peaks_table(const nlohmann::ordered_json& use);
// The units. Neighbors that are alike share a row.
trainer::Table units_table(const nlohmann::ordered_json& units);
// plan["pipeline"]["ranks"].
trainer::Table stages_table(const nlohmann::ordered_json& ranks);
trainer::Table largest_table(const nlohmann::ordered_json& largest);
trainer::Table changes_table(const nlohmann::ordered_json& changes);
// The numbers of plan["time"].
trainer::Table plan_time_table(const nlohmann::ordered_json& time);

}  // namespace fsdp::planner
