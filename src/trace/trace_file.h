// Trace Event Format.
#pragma once

#include <string>
#include <vector>

#include "fsdp/trace.h"

namespace fsdp {

// Ranges of one rank as events, comma-separated without brackets: rows are named, and overlapping ranges of a track go
// to rows of their own (to the first one that is free).
std::string trace_events(int rank, std::vector<TraceRange> ranges);

}  // namespace fsdp
