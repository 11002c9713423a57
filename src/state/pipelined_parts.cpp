#include "state/pipelined_parts.h"

#include <c10/util/Exception.h>

namespace fsdp::state {

ModelParts parts_of(const PipelinedModel& model) {
  TORCH_CHECK(!model.stages.empty(), "PipelinedModel: ", model.mesh.where(), " has no stage");
  ModelParts parts;
  for (const CheckpointedStage& stage : model.stages) parts.push_back({stage.model, stage.module, stage.index});
  return parts;
}

LoadReport load_stages(const PipelinedModel& model, const std::string& what, bool strict,
                       const std::function<std::unique_ptr<Loader>()>& make) {
  return load_together(exchange_in(*model.mesh.world(), what), what, strict, make, stages_text(parts_of(model)));
}

}  // namespace fsdp::state
