// The paper's statements about whole runs: figures 6, 7 and 8.
#pragma once

#include <vector>

#include "planner/paper/paper_check.h"
#include "planner/paper/paper_plans.h"

namespace fsdp::planner {

std::vector<PaperCheck> run_checks(const PaperPlans& plans);

}  // namespace fsdp::planner
