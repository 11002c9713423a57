// Memory from moment to moment.
#pragma once

#include <cstddef>
#include <vector>

#include "planner/memory/memory_use.h"
#include "planner/memory/step_phases.h"

namespace fsdp::planner {

// Returns the course of memory over the last step. The step is cut into up to `parts` equal parts; of each part, the
// moments with most and with least in use are kept, so that the step's peak is among them. Empty without steps.
MemoryCourse course_of_last_step(const std::vector<Lifetime>& lifetimes, const StepPhases& phases, size_t parts = 200);

}  // namespace fsdp::planner
