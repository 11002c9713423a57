// A rank of a planned pipeline, beside the others, as JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "setup/pipeline_layout.h"
#include "setup/sharded_parts.h"

namespace fsdp::planner {

// `plan`: the document of the rank's plan. Returns "rank", "stages" (the text of each of its parts of the model),
// "parameters" (elements of its parts, not sharded), "verdict", "bytes" (of the device, or of all ranks of a host like
// this one) and, if the plan has times, "compute_seconds" and "step_seconds" of the last step.
nlohmann::ordered_json stage_document(const trainer::PipelineLayout& layout, const trainer::ShardedParts& parts,
                                      const nlohmann::ordered_json& plan);

// "embedding, block 0; block 3": the parts of such a rank.
std::string stages_text(const nlohmann::ordered_json& rank);

// "54 % of the step": the time in which such a rank computes, or nothing if the plan has no times.
std::optional<std::string> busy_text(const nlohmann::ordered_json& rank);

}  // namespace fsdp::planner
