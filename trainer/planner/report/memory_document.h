// The memory of a plan as JSON.
#pragma once

#include <nlohmann/json.hpp>

#include "planner/memory/forecast.h"

namespace fsdp::planner {

// Returns "verdict", "host" and, if ranks have devices, "device", each with its categories at the peak, the peaks of
// all steps, the largest allocations, and "over_step", the course over the last step. All sizes are bytes.
nlohmann::ordered_json memory_document(const MemoryForecast& forecast, const Tape& tape);

}  // namespace fsdp::planner
