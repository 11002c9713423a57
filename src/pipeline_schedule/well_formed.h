// What must hold of every action of a schedule, whatever their order.
#pragma once

#include "fsdp/pipeline_schedule.h"

namespace fsdp::pipeline_schedule {

// Throws c10::Error that names rank and action if a stage is placed on a rank that is not there, or if an action is of
// another rank's stage, or has no micro-batch of the schedule where its kind needs one.
void check_well_formed(const PipelineSchedule& schedule);

}  // namespace fsdp::pipeline_schedule
