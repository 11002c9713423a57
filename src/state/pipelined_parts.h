// The stages of a pipeline that one rank holds, as parts of the model.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "fsdp/pipeline_state.h"
#include "state/load_together.h"
#include "state/model_parts.h"

namespace fsdp::state {

// Throws, naming the rank, if it has no stage.
ModelParts parts_of(const PipelinedModel& model);

// Loads the stages of all ranks. `make`: the loader of this rank's. Collective over all ranks of the mesh.
LoadReport load_stages(const PipelinedModel& model, const std::string& what, bool strict,
                       const std::function<std::unique_ptr<Loader>()>& make);

}  // namespace fsdp::state
