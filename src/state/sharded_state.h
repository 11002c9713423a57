// The parts of tensors that this rank holds, of one model or of several stages.
#pragma once

#include <vector>

#include "fsdp/state_dict.h"
#include "state/held_part.h"
#include "state/saved_optimizer.h"
#include "state/unsharded_tensors.h"

namespace fsdp::state {

ShardedStateDict sharded_values(const std::vector<HeldPart>& parts, const NamedTensors& unsharded,
                                const ShardedStateOptions& options);
ShardedOptimizerState sharded_optimizer(const std::vector<HeldPart>& parts, const OptimizerState& optimizer,
                                        const ShardedStateOptions& options);
SavedOptimizer saved_from(const ShardedOptimizerState& state);

}  // namespace fsdp::state
