// The page of `fsdp report`.
#pragma once

#include <string>
#include <vector>

#include "report_page/run_data.h"

namespace fsdp::trainer {

// Returns one HTML page without external dependencies: tables, and data with a script that draws it. An empty `title`
// stands for the names of the runs.
std::string report_page(const std::vector<RunData>& runs, const std::string& title);

}  // namespace fsdp::trainer
