// Local state dicts of a model or of the stages of a pipeline that one rank holds.
#pragma once

#include <memory>

#include "fsdp/state_dict.h"
#include "state/flat_shards.h"
#include "state/load_together.h"
#include "state/unsharded_tensors.h"

namespace fsdp::state {

// See fsdp::local_state_dict. `unsharded`: by their keys.
LocalStateDict local_values(const KeyedModels& models, const NamedTensors& unsharded,
                            const ShardedStateOptions& options);
// `values` must outlive the loader.
std::unique_ptr<Loader> local_loader(const KeyedModels& models, const NamedTensors& unsharded,
                                     const LocalStateDict& values);

// See fsdp::local_optimizer_state.
LocalOptimizerState local_optimizer(const KeyedModels& models, const OptimizerState& optimizer,
                                    const ShardedStateOptions& options);
// `optimizer` and `state` must outlive the loader.
std::unique_ptr<Loader> local_optimizer_loader(const KeyedModels& models, OptimizerState& optimizer,
                                               const LocalOptimizerState& state);

}  // namespace fsdp::state
