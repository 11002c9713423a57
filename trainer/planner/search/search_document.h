// The result of a search as JSON and as text.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "planner/search/plan_search.h"

namespace fsdp::planner {

// The parts of a search that the candidates do not have.
struct SearchRun {
  bool keeps_samples = true;  // SpaceOptions::keeps_samples
  double seconds = 0;
  size_t at_once = 1;
};

// Returns "model", "cluster", "rank", "steps" (those of make_plan, of the config as it is) and "search": "compared"
// ("tokens_per_second", "samples_per_second" or "train_batch_size"), counts, "config" (the row of the config as it is),
// "front" and "tight". A row has "set" (overrides), "verdict", "train_batch_size", "gradient_accumulation_steps", the
// figure that is compared, "step_seconds", and the bytes "device" and "host".
nlohmann::ordered_json search_document(const SearchInput& input, const Candidates& candidates,
                                       const SearchFronts& fronts, const SearchRun& run);

std::string search_text(const nlohmann::ordered_json& document);

}  // namespace fsdp::planner
