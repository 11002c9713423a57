// Agreement of all ranks on a load report.
#pragma once

#include <functional>
#include <string>

#include "fsdp/load_report.h"
#include "state/together.h"

namespace fsdp::state {

// Adds the entries of one report to another report.
void append(LoadReport from, LoadReport& to);

// Runs `match`, which reports what would be loaded and what would not, on each rank. Returns the merged report: a name
// is loaded if every rank can load it. If `match` throws on any rank, all ranks throw. With `strict`, an incomplete
// report throws ErrorOfAllRanks, whose message begins with `name`. Collective.
//
// `part`: the part of the model that this rank holds, if ranks hold different ones. A name is then loaded if every rank
// of the parts that have it can load it, and unexpected if no part has it.
LoadReport agree(const Exchange& exchange, const std::string& name, bool strict,
                 const std::function<LoadReport()>& match, const std::string& part = "");

}  // namespace fsdp::state
