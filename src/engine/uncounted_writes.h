// Writes to shards that no version counter counts (seams: torch_seams/write_watch.h): what a unit holds of its gathered
// parameters is compared with the shards, once somebody may have written.
#pragma once

#include "engine/unit.h"

namespace fsdp::engine {

// Begins to watch the shards. Must be called before a unit is gathered.
void watch_shards(const Unit& unit);

// Whether somebody may have written to the shards since, or may at any time. Costs next to nothing.
bool may_be_written(const Unit& unit);

// Whether the gathered or parked parameters of a unit differ from this rank's shards because of such a write. Where
// values are parked, which need not contain this rank's own, any pointer that was taken counts. The unit must not be
// gathering.
bool written_uncounted(const Unit& unit) FSDP_REQUIRES(unit.mutex);

// Throws if another rank holds nothing of the parameters that differ, and so cannot notice. This is known with the cut
// by rows alone, where a rank holds rows of all parameters of which the next rank holds any.
void check_all_ranks_notice(const Unit& unit) FSDP_REQUIRES(unit.mutex);

}  // namespace fsdp::engine
