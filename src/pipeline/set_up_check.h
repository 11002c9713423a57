// Compares the set-ups of a pipeline's ranks, before the first step.
#pragma once

#include <vector>

#include "fsdp/device_mesh.h"
#include "fsdp/pipeline.h"

namespace fsdp::pipeline {

// Throws unless the schedule is of this mesh, can run, and has no passes that this runner lacks, and `stages` are those
// that it gives to this rank.
void check_stages(const DeviceMesh& mesh, const PipelineSchedule& schedule, const std::vector<PipelineStage>& stages);

// Throws on all ranks unless they have the same schedule and options, and the stages together hold each parameter once.
// Collective.
void compare_ranks(const DeviceMesh& mesh, const PipelineSchedule& schedule, const std::vector<PipelineStage>& stages,
                   const PipelineOptions& options);

}  // namespace fsdp::pipeline
