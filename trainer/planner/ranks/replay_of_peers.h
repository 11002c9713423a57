// The replays of the planned ranks of a pipeline, which wait for one another's messages.
#pragma once

#include "planner/ranks/planned_peers.h"
#include "planner/time/replay.h"

namespace fsdp::planner {

// Replays this rank together with its peers, all of which must call this. Throws as run_replays.
ReplayResult replay_with(PlannedPeers& peers, const Replay& own);

}  // namespace fsdp::planner
