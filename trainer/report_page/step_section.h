// One step on a page: what ranks do, and their memory.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "report_page/step_timeline.h"

namespace fsdp::trainer {

// Returns the data of a step for the script, which draws it in the section with the same number. Of many ranks only the
// first are drawn.
nlohmann::ordered_json step_json(size_t number, const StepTimeline& step);

// Returns a section with the plots of the step and tables of their sums. `heading`: HTML. `remark`: a sentence.
std::string step_section(size_t number, const std::string& heading, const std::string& remark,
                         const StepTimeline& step);

}  // namespace fsdp::trainer
