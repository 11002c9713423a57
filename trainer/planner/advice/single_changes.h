// Changes of a config that take less memory.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "config/config.h"

namespace fsdp::planner {

struct Change {
  std::vector<std::string> overrides;  // "KEY=VALUE", as after --set
  std::string note;                    // what else it changes; may be empty
};

// Returns the changes that apply to this config, those that cost least first.
std::vector<Change> changes_for(const trainer::Config& config);

// Plans each change by itself, and all of them together up to the first that fits if none does alone. `plan` returns
// the document of make_plan for these overrides. Returns, for each change that needs less than `document`, "set",
// "verdict", "total" and perhaps "note". A change that the config or the model refuses is left out.
nlohmann::ordered_json planned_changes(
    const trainer::Config& config, const nlohmann::ordered_json& document,
    const std::function<nlohmann::ordered_json(const std::vector<std::string>&)>& plan);

}  // namespace fsdp::planner
