// What the ranks together make of what is to be loaded.
#pragma once

#include <functional>
#include <string>

#include "fsdp/load_report.h"
#include "state/together.h"

namespace fsdp {

// Adds what one report says to another one.
void append(LoadReport from, LoadReport& to);

// Runs `match` on each rank: what would be loaded, and what not. Returns all of it together: a name is loaded when
// every rank can load it. What `match` throws, all ranks throw. With `strict` an incomplete report is an
// ErrorOfAllRanks, which begins with `name`. Collective.
LoadReport agree(const Exchange& exchange, const std::string& name, bool strict,
                 const std::function<LoadReport()>& match);

}  // namespace fsdp
