// A plan as a page.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "report_page/step_timeline.h"

namespace fsdp::planner {

// Returns one HTML page without external dependencies for the result of make_plan, with "changes" (single_changes.h)
// and "time" if the document has them. `timeline`: a step of the plan, in place of memory over the step's operations.
std::string plan_page(const nlohmann::ordered_json& plan,
                      const std::optional<trainer::StepTimeline>& timeline = std::nullopt);

}  // namespace fsdp::planner
