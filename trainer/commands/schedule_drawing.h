// Draws how long the passes of a pipeline's schedule take, and where its ranks wait.
#pragma once

#include <string>

#include "fsdp/pipeline_schedule.h"

namespace fsdp::trainer {

// A line for each rank of the pipeline; a pass takes as many columns as it has time units, rounded. "F3": forward of
// micro-batch 3. Ranks with several stages name the stage too: "2F3".
std::string schedule_text(const PipelineSchedule& schedule, const PipelineSimulation& simulation);

// The same as a picture, which can be read on light and on dark pages. `title`: its first line.
std::string schedule_svg(const PipelineSchedule& schedule, const PipelineSimulation& simulation,
                         const std::string& title);

}  // namespace fsdp::trainer
