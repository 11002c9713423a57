// Describes a pipeline for the first lines of the log.
#pragma once

#include <string>
#include <vector>

#include "config/config.h"
#include "setup/rank_groups.h"
#include "setup/sharded_parts.h"

namespace fsdp::trainer {

// Returns lines about the mesh, the schedule with its simulated bubble, and each stage: its ranks, its part of the
// model and its number of parameters. Returns none without a pipeline. Collective over the pipeline.
std::vector<std::string> pipeline_lines(const Config& config, const TrainingInputs& inputs, const RankGroups& groups,
                                        const ShardedParts& parts);

}  // namespace fsdp::trainer
