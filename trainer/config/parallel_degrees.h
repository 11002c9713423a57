// How the ranks of a run are divided among the kinds of parallelism.
#pragma once

#include <cstdint>
#include <optional>

#include "config/config.h"

namespace fsdp::trainer {

struct ParallelDegrees {
  int64_t pipeline = 1;  // ranks of a pipeline
  int64_t tensor = 1;    // ranks that split the weights of a layer
  int64_t data = 1;      // data-parallel ranks: those of the whole model, or of each stage or part
  // Data-parallel ranks that share one copy, if a key says so: sharding_factor, data_parallel_shard_degree or
  // data_parallel_replicate_degree.
  std::optional<int64_t> shard_group = {};

  // Whether the data-parallel ranks of a group hold a part of the model only.
  bool divides_model() const { return pipeline > 1 || tensor > 1; }
  // Copies of the model, or of each stage, in the groups of a hybrid strategy.
  int64_t replicas() const { return data / shard_group.value_or(data); }
};

// Throws a ConfigError that names key, value and accepted values if the degrees do not fit one another, the strategy or
// this number of ranks.
ParallelDegrees parallel_degrees(const Config& config, int64_t world_size);

}  // namespace fsdp::trainer
