// The bytes that a rank sends in a step, by the paper's formulas (section 3.2) and by plans.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "planner/paper/paper_plans.h"

namespace fsdp::planner {

struct PaperVolume {
  int gpus = 0;
  std::string strategy;
  std::string sent;     // "in the host", "across hosts", "all"
  std::string formula;  // of the paper, with M, W and G
  int64_t by_formula = 0;
  std::string corrected = {};  // the formula of the schedule, where it is another one
  int64_t by_corrected = 0;
  int64_t planned = 0;
};

// `hosts`: of the plans, such as volume_hosts().
std::vector<PaperVolume> paper_volumes(const PaperPlans& plans, const std::vector<int>& hosts);

nlohmann::ordered_json volume_json(const PaperVolume& volume);

}  // namespace fsdp::planner
