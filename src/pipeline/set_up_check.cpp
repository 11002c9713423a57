#include "pipeline/set_up_check.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>

#include "torch_seams/operator_interception.h"

namespace fsdp::pipeline {
namespace {

using nlohmann::json;

std::string csv_of(const PipelineSchedule& schedule) {
  std::ostringstream text;
  write_pipeline_csv(text, schedule);
  return text.str();
}

// The set-up of a rank, for the others.
json facts_of(const PipelineSchedule& schedule, const std::vector<PipelineStage>& stages,
              const PipelineOptions& options) {
  json of_stages = json::object();
  for (const PipelineStage& stage : stages) {
    json names = json::array();
    for (const ShardSlice& slice : stage.sharded->shard_slices()) names.push_back(slice.fqn);
    of_stages[std::to_string(stage.index)] = std::move(names);
  }
  return {{"schedule", csv_of(schedule)},
          {"micro-batches", schedule.micro_batches},
          {"sync_each_micro_batch", options.sync_each_micro_batch},
          {"all_reduce_each_micro_batch", options.all_reduce_each_micro_batch},
          {"parameters", options.parameters},
          {"tied_parameters", options.tied_parameters},
          {"stages", std::move(of_stages)}};
}

// Throws, naming the difference, if the set-ups of two ranks differ.
void check_same(const DeviceMesh& mesh, const json& first, const json& other, int rank) {
  for (const char* key : {"micro-batches", "schedule", "sync_each_micro_batch", "all_reduce_each_micro_batch",
                          "parameters", "tied_parameters"}) {
    if (first[key] == other[key]) continue;
    const auto value = [&](const json& facts) {
      return facts[key].is_string() || facts[key].is_array() ? std::string() : c10::str(" (", facts[key].dump(), ")");
    };
    TORCH_CHECK(false, "fsdp: Pipeline: ", mesh.where(rank), " was given other ", key, value(other), " than ",
                mesh.where(0), value(first), "; all ranks must be given the same");
  }
}

// Throws if two ranks hold different parameters of one stage, or two stages hold the same one, unless it is tied.
std::map<std::string, int> stage_of_each_parameter(const DeviceMesh& mesh, const std::vector<json>& of_ranks,
                                                   const std::vector<std::string>& tied) {
  std::map<std::string, std::pair<json, int>> stages;  // their parameters, and the first rank that holds them
  std::map<std::string, int> stage_of;
  for (size_t rank = 0; rank < of_ranks.size(); ++rank) {
    for (const auto& [stage, names] : of_ranks[rank]["stages"].items()) {
      const auto [known, is_new] = stages.try_emplace(stage, names, static_cast<int>(rank));
      TORCH_CHECK(known->second.first == names, "fsdp: Pipeline: ", mesh.where(static_cast<int>(rank)), " holds ",
                  names.size(), " parameters of stage ", stage, ", ", mesh.where(known->second.second), " holds ",
                  known->second.first.size(), ", and not the same ones");
      for (const json& name : is_new ? names : json::array()) {
        const auto [place, is_first] = stage_of.try_emplace(name, std::stoi(stage));
        const bool is_tied = std::find(tied.begin(), tied.end(), place->first) != tied.end();
        TORCH_CHECK(is_first || is_tied, "fsdp: Pipeline: parameter '", place->first, "' is in stages ", place->second,
                    " and ", stage,
                    "; stages must hold different parameters, named as in the whole model, unless "
                    "PipelineOptions::tied_parameters "
                    "names them");
      }
    }
  }
  return stage_of;
}

void check_coverage(const std::map<std::string, int>& stage_of, const std::vector<std::string>& parameters) {
  if (parameters.empty()) return;
  const std::set<std::string> all(parameters.begin(), parameters.end());
  for (const std::string& name : all) {
    TORCH_CHECK(stage_of.count(name) > 0, "fsdp: Pipeline: parameter '", name, "' of the model is in no stage");
  }
  for (const auto& [name, stage] : stage_of) {
    TORCH_CHECK(all.count(name) > 0, "fsdp: Pipeline: parameter '", name, "' of stage ", stage,
                " is none of the model's parameters");
  }
}

}  // namespace

void check_stages(const DeviceMesh& mesh, const PipelineSchedule& schedule, const std::vector<PipelineStage>& stages) {
  TORCH_CHECK(schedule.ranks() == mesh.size("pp"), "fsdp: Pipeline: the schedule is of ", schedule.ranks(),
              " ranks, the mesh has ", mesh.size("pp"), " in pp");
  for (const std::vector<PipelineAction>& actions : schedule.of_rank) {
    for (const PipelineAction& action : actions) {
      if (action.kind != PipelineActionKind::kInputGradient) continue;
      seams::require_interception(seams::InterceptionLevel::kAboveAutograd);
    }
  }
  std::vector<int> given;
  for (const PipelineStage& stage : stages) {
    TORCH_CHECK(stage.sharded && stage.forward, "fsdp: Pipeline: stage ", stage.index,
                " has no sharded module or no forward function");
    given.push_back(stage.index);
  }
  std::sort(given.begin(), given.end());
  const std::vector<int> wanted = schedule.stages_of(mesh.rank("pp"));
  TORCH_CHECK(given == wanted, "fsdp: Pipeline: ", mesh.where(), " was given the stages [", c10::Join(", ", given),
              "]; the schedule gives it [", c10::Join(", ", wanted), "]");
}

void compare_ranks(const DeviceMesh& mesh, const PipelineSchedule& schedule, const std::vector<PipelineStage>& stages,
                   const PipelineOptions& options) {
  const std::string own = facts_of(schedule, stages, options).dump();
  std::vector<json> of_ranks;
  for (const std::string& facts : mesh.world()->all_gather_bytes(own, {"pipeline", 0, Pass::kSetup})) {
    of_ranks.push_back(json::parse(facts));
    check_same(mesh, of_ranks.front(), of_ranks.back(), static_cast<int>(of_ranks.size()) - 1);
  }
  check_coverage(stage_of_each_parameter(mesh, of_ranks, options.tied_parameters), options.parameters);
}

}  // namespace fsdp::pipeline
