// The planned steps as a trace (fsdp/trace.h), for `fsdp report` and Perfetto.
#pragma once

#include <filesystem>

#include "fsdp/trace.h"
#include "planner/memory/memory_use.h"
#include "planner/pricing/time_forecast.h"
#include "planner/tape/tape.h"

namespace fsdp::planner {

// Returns the timeline of all steps: phases, the units' computation, waits for collectives, and collectives while they
// use their streams; times of the device, from the begin of the first step. Memory is sampled by kind. `engine`: the
// ranges that the engine recorded while the tape noted times (PlannedRun::trace); units' computation and the gathers
// that limit_all_gathers held back come from there.
Trace time_trace(const Tape& tape, const TimeForecast& forecast, const MemoryUse& memory, const Trace& engine);

// Writes the file. Throws a FileError that names it and the reason.
void write_time_trace(const std::filesystem::path& path, int rank, const Trace& trace);

}  // namespace fsdp::planner
