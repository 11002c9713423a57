// How a model is cut into the stages of a pipeline, and in which order the stages run.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/config.h"
#include "fsdp/pipeline_schedule.h"
#include "models/staged_lm.h"
#include "tasks/trained_model.h"

namespace fsdp::trainer {

struct PipelineLayout {
  PipelineSchedule schedule;             // with communication
  std::vector<models::StagePart> parts;  // of each stage
  double bubble = 0;                     // the simulated one, if blocks take equally long in all stages

  int stages_per_rank() const { return schedule.stages() / schedule.ranks(); }
};

// Returns the layout that the config asks for, or nothing without a pipeline. Throws a ConfigError that names key,
// value and accepted values if the model cannot be cut like this, or if the micro-batches do not fit the schedule.
std::optional<PipelineLayout> pipeline_layout(const Config& config, const TrainedModel& model);

// Describes a stage: "embedding, blocks 0 to 3".
std::string part_text(const models::StagePart& part);

}  // namespace fsdp::trainer
