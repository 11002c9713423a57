// Numbers that ranks tell one another.
#pragma once

#include <vector>

#include "fsdp/communicator.h"

namespace fsdp::trainer {

// Every rank's `values`, in rank order. All ranks pass the same number of values. Collective; blocks.
std::vector<std::vector<double>> gather_values(Communicator& communicator, const std::vector<double>& values,
                                               const CollectiveId& id);

}  // namespace fsdp::trainer
