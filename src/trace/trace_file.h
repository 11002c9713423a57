// Writes traces in the Trace Event Format.
#pragma once

#include <string>
#include <vector>

#include "fsdp/trace.h"

namespace fsdp::trace {

// Returns one rank's recorded trace as events, comma-separated without brackets. Rows are named. Overlapping ranges of
// a track are put into rows of their own (into the first row that is free).
std::string trace_events(int rank, Trace trace);

// Returns the whole file, from the events of each rank.
std::string trace_file_text(const std::vector<std::string>& events);

}  // namespace fsdp::trace
