// A lower bound on the memory of a run, by arithmetic.
#pragma once

#include <cstdint>

#include "config/config.h"
#include "planner/target/cluster.h"

namespace fsdp::planner {

struct LeastMemory {
  int64_t device = 0;  // bytes of each rank's device; 0 without devices
  int64_t host = 0;    // bytes of all ranks of one host
};

// Counts the shards of parameters, gradients and optimizer state of a model with so many parameters, its gathered
// parameters where the strategy keeps all of them until backward, and the context of the device. Activations, buffers
// and padding come on top. `config` must suit the number of ranks.
LeastMemory least_memory(const trainer::Config& config, const Cluster& cluster, int64_t parameters);

}  // namespace fsdp::planner
