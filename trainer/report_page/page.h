// The page of `fsdp report`.
#pragma once

#include <string>
#include <vector>

#include "report_page/run_data.h"

namespace fsdp::trainer {

// One HTML page that needs nothing else: tables, and data with a script that draws it. `title`: empty for the runs'
// names.
std::string report_page(const std::vector<RunData>& runs, const std::string& title);

}  // namespace fsdp::trainer
