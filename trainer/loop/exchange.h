// Exchanges numbers between ranks.
#pragma once

#include <vector>

#include "fsdp/communicator.h"

namespace fsdp::trainer {

// Returns every rank's `values`, in rank order. All ranks must pass the same number of values. Collective; blocks.
std::vector<std::vector<double>> gather_values(Communicator& communicator, const std::vector<double>& values,
                                               const CollectiveId& id);

}  // namespace fsdp::trainer
