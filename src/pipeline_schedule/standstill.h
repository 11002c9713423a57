// The error of a schedule in which ranks wait for one another for ever.
#pragma once

#include <string>
#include <vector>

#include "fsdp/pipeline_schedule.h"

namespace fsdp::pipeline_schedule {

// Says with which action each rank waits, and for what. next: the index of each rank's next action.
std::string standstill_text(const PipelineSchedule& schedule, const std::vector<size_t>& next);

// "rank 1, action 4 of 12 (0F3)"
std::string place_of(const PipelineSchedule& schedule, int rank, size_t index);

}  // namespace fsdp::pipeline_schedule
