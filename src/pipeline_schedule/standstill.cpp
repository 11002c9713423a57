#include "pipeline_schedule/standstill.h"

#include "pipeline_schedule/messages.h"

namespace fsdp::pipeline_schedule {

std::string place_of(const PipelineSchedule& schedule, int rank, size_t index) {
  const auto& actions = schedule.of_rank[static_cast<size_t>(rank)];
  return "rank " + std::to_string(rank) + ", action " + std::to_string(index + 1) + " of " +
         std::to_string(actions.size()) + " (" + fsdp::to_string(actions[index]) + ")";
}

std::string standstill_text(const PipelineSchedule& schedule, const std::vector<size_t>& next) {
  std::string text = "the pipeline schedule comes to a standstill:";
  const char* separator = " ";
  for (int rank = 0; rank < schedule.ranks(); ++rank) {
    const auto& actions = schedule.of_rank[static_cast<size_t>(rank)];
    const size_t index = next[static_cast<size_t>(rank)];
    if (index == actions.size()) continue;
    text += separator + place_of(schedule, rank, index);
    if (const auto needed = needed_by(actions[index], schedule.stages())) text += " waits for " + to_string(*needed);
    separator = "; ";
  }
  return text;
}

}  // namespace fsdp::pipeline_schedule
