// State dicts of the whole model of a pipeline (fsdp/pipeline.h): those of state_dict.h, with the names of the whole
// model, from any division into stages and into any other one, or none.
//
//   fsdp::PipelinedModel whole{mesh, {{stage, *sharded, *model}}, {tied}};
//   auto values = fsdp::full_state_dict(whole, {.rank0_only = true, .offload_to_cpu = true});
//   …
//   fsdp::load_full_state_dict(whole, values, {.from_rank0 = true});
//
// What state_dict.h says of contents, errors and options holds here, too, for all stages together: a name is missing if
// a stage wants it, and unexpected if none does. If anything does not fit, no stage is changed. Rank 0 is that of the
// mesh. All functions but sharded_state_dict, local_state_dict and local_optimizer_state are collective over all ranks
// of the mesh.
//
// Local state dicts load into the same stages over the same ranks. Their keys begin with the stage, "stage_2/", because
// the root units of two stages, and units of tied parameters, may have the same name; the parameters in their layouts
// have the names of the whole model.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "fsdp/checkpoint.h"
#include "fsdp/device_mesh.h"
#include "fsdp/state_dict.h"

namespace fsdp {

// The model of a pipeline, on one rank.
struct PipelinedModel {
  DeviceMesh mesh;
  std::vector<CheckpointedStage> stages;          // those of this rank
  std::vector<std::string> tied_parameters = {};  // as PipelineOptions::tied_parameters: saved once, loaded by both
  // Further names that the whole model has and no stage, each with the name that the stages have: {{"lm_head.weight",
  // "transformer.wte.weight"}} of a head that is the embedding. They are treated as names of a shared parameter.
  std::map<std::string, std::string> aliases = {};
};

// Stages gather one unit after the other, and pass its tensors on one by one: with rank0_only no rank holds more than a
// unit in addition to its shards, but rank 0, which holds the result.
FullStateDict full_state_dict(const PipelinedModel& model, const FullParameterOptions& options = {});
// Several names of a tensor follow each other. See for_each_full_tensor of one model.
void for_each_full_tensor(const PipelinedModel& model,
                          const std::function<void(const std::string& name, const at::Tensor& full)>& visit,
                          const FullParameterOptions& options = {});

// With from_rank0, each rank keeps the whole tensors of its stages in host memory until they are loaded.
LoadReport load_full_state_dict(const PipelinedModel& model, const FullStateDict& values,
                                const FullLoadOptions& options = {});

// The parts of the tensors of this rank's stages.
ShardedStateDict sharded_state_dict(const PipelinedModel& model, const ShardedStateOptions& options = {});
LoadReport load_sharded_state_dict(const PipelinedModel& model, const ShardedStateDict& values,
                                   const LoadOptions& options = {});

// `optimizer`: of all stages of this rank, with as many parameter groups as on other stages; those of one number are
// one group of the model, and have the same options.
FullOptimizerState full_optimizer_state(const PipelinedModel& model, const OptimizerState& optimizer,
                                        const FullParameterOptions& options = {});
LoadReport load_full_optimizer_state(const PipelinedModel& model, OptimizerState& optimizer,
                                     const FullOptimizerState& state, const FullLoadOptions& options = {});

// The groups are those of the whole model, so that the states of all ranks can be put together (add_parts). Collective.
ShardedOptimizerState sharded_optimizer_state(const PipelinedModel& model, const OptimizerState& optimizer,
                                              const ShardedStateOptions& options = {});
LoadReport load_sharded_optimizer_state(const PipelinedModel& model, OptimizerState& optimizer,
                                        const ShardedOptimizerState& state, const LoadOptions& options = {});

// ---------------------------------------------------------------- local

LocalStateDict local_state_dict(const PipelinedModel& model, const ShardedStateOptions& options = {});
LoadReport load_local_state_dict(const PipelinedModel& model, const LocalStateDict& values, bool strict = true);

LocalOptimizerState local_optimizer_state(const PipelinedModel& model, const OptimizerState& optimizer,
                                          const ShardedStateOptions& options = {});
LoadReport load_local_optimizer_state(const PipelinedModel& model, OptimizerState& optimizer,
                                      const LocalOptimizerState& state, bool strict = true);

}  // namespace fsdp
