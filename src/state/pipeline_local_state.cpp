// Local state dicts of the stages of a pipeline.
#include <c10/util/StringUtil.h>

#include <string>

#include "fsdp/pipeline_state.h"
#include "state/local_state.h"
#include "state/pipelined_parts.h"

namespace fsdp {
namespace {

std::string key_prefix(const CheckpointedStage& stage) { return c10::str("stage_", stage.index, "/"); }

state::KeyedModels keyed_models(const PipelinedModel& model) {
  state::KeyedModels models;
  for (const CheckpointedStage& stage : model.stages) models.push_back({stage.model, key_prefix(stage)});
  return models;
}

state::NamedTensors keyed_unsharded(const PipelinedModel& model) {
  state::NamedTensors tensors;
  for (const CheckpointedStage& stage : model.stages) {
    for (const auto& [name, value] : state::unsharded_tensors(stage.model, stage.module)) {
      tensors.emplace_back(key_prefix(stage) + name, value);
    }
  }
  return tensors;
}

}  // namespace

LocalStateDict local_state_dict(const PipelinedModel& model, const ShardedStateOptions& options) {
  return state::local_values(keyed_models(model), keyed_unsharded(model), options);
}

LoadReport load_local_state_dict(const PipelinedModel& model, const LocalStateDict& values, bool strict) {
  return state::load_stages(model, "load_local_state_dict", strict,
                            [&] { return state::local_loader(keyed_models(model), keyed_unsharded(model), values); });
}

LocalOptimizerState local_optimizer_state(const PipelinedModel& model, const OptimizerState& optimizer,
                                          const ShardedStateOptions& options) {
  return state::local_optimizer(keyed_models(model), optimizer, options);
}

LoadReport load_local_optimizer_state(const PipelinedModel& model, OptimizerState& optimizer,
                                      const LocalOptimizerState& state, bool strict) {
  return state::load_stages(model, "load_local_optimizer_state", strict,
                            [&] { return state::local_optimizer_loader(keyed_models(model), optimizer, state); });
}

}  // namespace fsdp
