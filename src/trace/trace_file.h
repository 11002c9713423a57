// Trace Event Format.
#pragma once

#include <string>
#include <vector>

#include "fsdp/trace.h"

namespace fsdp {

// What one rank has recorded as events, comma-separated without brackets: rows are named, and overlapping ranges of a
// track go to rows of their own (to the first one that is free).
std::string trace_events(int rank, Trace trace);

}  // namespace fsdp
