#include "loop/pipeline_text.h"

#include <c10/util/StringUtil.h>

#include <array>
#include <cstdio>
#include <map>

#include "loop/exchange.h"
#include "state/held_part.h"

namespace fsdp::trainer {

namespace {

std::string mesh_text(const DeviceMesh& mesh) {
  std::vector<std::string> words;
  for (const MeshDimension& dimension : mesh.dimensions()) {
    if (dimension.size > 1) words.push_back(c10::str(dimension.name, " ", dimension.size));
  }
  return c10::str("mesh of ", mesh.world()->size(), " ranks: ", c10::Join(", ", words));
}

std::string schedule_text(const Config& config, const PipelineLayout& layout) {
  std::array<char, 32> bubble{};
  std::snprintf(bubble.data(), bubble.size(), "%.1f %%", layout.bubble * 100);
  return c10::str("pipeline: ", config.parallelism.pipeline_schedule, ", ", layout.schedule.stages(), " stages, ",
                  layout.schedule.micro_batches, " micro-batches, simulated bubble ", bubble.data());
}

int64_t parameters_of(const ShardedModule& sharded) {
  int64_t count = 0;
  for (const state::HeldPart& whole : state::whole_parameters(sharded)) count += c10::multiply_integers(whole.sizes);
  return count;
}

// By stage.
std::map<int, int64_t> parameters_of_stages(Communicator& pipeline, const ShardedParts& parts) {
  std::vector<double> own;
  for (const ShardedPart& part : parts) {
    own.insert(own.end(), {static_cast<double>(part.stage), static_cast<double>(parameters_of(*part.sharded))});
  }
  std::map<int, int64_t> of_stages;
  for (const auto& values : gather_values(pipeline, own, {.name = "parameters of the stages"})) {
    for (size_t i = 0; i < values.size(); i += 2) {
      of_stages[static_cast<int>(values[i])] = static_cast<int64_t>(values[i + 1]);
    }
  }
  return of_stages;
}

// The ranks with the same place in the pipeline are neighbours.
std::string ranks_text(const RankGroups& groups, int pipeline_rank) {
  const int count = groups.world->size() / groups.mesh->size("pp"), first = pipeline_rank * count;
  return count == 1 ? c10::str("rank ", first) : c10::str("ranks ", first, " to ", first + count - 1);
}

}  // namespace

std::vector<std::string> pipeline_lines(const Config& config, const TrainingInputs& inputs, const RankGroups& groups,
                                        const ShardedParts& parts) {
  if (!groups.mesh) return {};
  std::vector<std::string> lines = {mesh_text(*groups.mesh)};
  if (!inputs.pipeline) return lines;
  const PipelineLayout& layout = *inputs.pipeline;
  lines.push_back(schedule_text(config, layout));
  for (const auto& [stage, parameters] : parameters_of_stages(*groups.mesh->group("pp"), parts)) {
    const auto index = static_cast<size_t>(stage);
    lines.push_back(c10::str("  stage ", stage, ", ", ranks_text(groups, layout.schedule.rank_of_stage[index]), ": ",
                             part_text(layout.parts[index]), "; ", parameters, " parameters"));
  }
  return lines;
}

}  // namespace fsdp::trainer
