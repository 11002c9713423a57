// The result of `fsdp plan --paper` as JSON, as text and as a page.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "planner/paper/paper_plans.h"

namespace fsdp::planner {

// "cluster", "plans", "checks" (paper_check.h), "volumes" (paper_volumes.h), "figures" (paper_figures.h)
nlohmann::ordered_json paper_document(const PaperPlans& plans);

// Both take a paper_document.
std::string paper_text(const nlohmann::ordered_json& document);
std::string paper_page(const nlohmann::ordered_json& document);

}  // namespace fsdp::planner
