// The times of collectives of ranks on CPUs, measured through real communicators.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "fsdp/communicator.h"
#include "planner/target/host_speed.h"

namespace fsdp::planner {

// Returns curves over these sizes, in bytes of the larger tensor, rounded to whole elements for each rank. `group`:
// ranks that share memory, or that do not; other groups of the same size do the same at the same time. Collective over
// `world`, to which all of these groups belong.
std::vector<ExchangeCurve> measure_exchanges(Communicator& world, const std::shared_ptr<Communicator>& group,
                                             const std::vector<int64_t>& sizes);

}  // namespace fsdp::planner
