// The passes of a run.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "config/config.h"
#include "loop/step_passes.h"
#include "setup/rank_groups.h"
#include "setup/sharded_parts.h"
#include "setup/training_inputs.h"

namespace fsdp::trainer {

// Returns the passes through a whole model, or through the stages of a pipeline that this rank has. `parameters`: the
// names of the whole model's. The arguments must outlive the result, but for `parameters`. Collective with a pipeline.
std::unique_ptr<StepPasses> make_passes(const StepsConfig& config, const TrainingInputs& inputs,
                                        const RankGroups& groups, const ShardedParts& parts,
                                        const std::vector<std::string>& parameters);

}  // namespace fsdp::trainer
