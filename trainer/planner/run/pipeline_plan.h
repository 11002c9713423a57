// Plans of the ranks of a pipeline, each in a process of its own, at the same time.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>

#include "planner/ranks/planned_peers.h"

namespace fsdp::planner {

struct PipelineRanks {
  int stages = 1;    // ranks of the pipeline
  int of_stage = 1;  // ranks of the run that hold the same part of the model
  // The rank whose figures are wanted; none: one that does not fit, or else the one that needs most memory.
  std::optional<int> chosen = std::nullopt;
};

// Plans one rank of each part of the model: the chosen rank, and those that pass their activations and gradients on to
// it. `plan`: makes the document of a rank; its member "stage" describes the rank among the others, with "verdict" and
// "bytes". Returns the
// document of the chosen rank without that member, but with a list of those of all ranks as "pipeline". Must be called
// before this process starts threads. Throws a ConfigError or a std::runtime_error, as the first plan that failed.
nlohmann::ordered_json plan_pipeline(const PipelineRanks& ranks,
                                     const std::function<nlohmann::ordered_json(int rank, PlannedPeers& peers)>& plan);

}  // namespace fsdp::planner
