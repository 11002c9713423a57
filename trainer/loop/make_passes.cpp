#include "loop/make_passes.h"

#include "loop/pipeline_passes.h"
#include "loop/whole_passes.h"

namespace fsdp::trainer {

std::unique_ptr<StepPasses> make_passes(const StepsConfig& config, const TrainingInputs& inputs,
                                        const RankGroups& groups, const ShardedParts& parts,
                                        const std::vector<std::string>& parameters) {
  if (!inputs.pipeline) {
    return std::make_unique<WholePasses>(config, parts.front().model, *parts.front().sharded);
  }
  std::vector<TrainedStage> stages;
  for (const ShardedPart& part : parts) stages.push_back({part.stage, *part.model.staged(), part.sharded});
  return std::make_unique<PipelinePasses>(config, *groups.mesh, *inputs.pipeline, stages,
                                          PipelineOptions{parameters, tied_parameters(inputs)});
}

}  // namespace fsdp::trainer
