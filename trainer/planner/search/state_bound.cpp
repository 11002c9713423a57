#include "planner/search/state_bound.h"

#include <algorithm>

#include "config/parallel_degrees.h"
#include "optimizers/registry.h"

namespace fsdp::planner {
namespace {

using trainer::Config;

int64_t size_of(c10::ScalarType dtype) { return static_cast<int64_t>(c10::elementSize(dtype)); }

// The ranks that divide the model among them. If ranks split the weights, some weights stay whole on each rank, and the
// stages of a pipeline differ; a lower bound of the largest rank may ignore that.
int64_t ranks_of_the_model(const Config& config) {
  return config.parallelism.tensor_degree * config.parallelism.pipeline_degree;
}

// The ranks that share one copy of the parameters.
int64_t ranks_of_a_copy(const Config& config, const Cluster& cluster) {
  const trainer::ShardingConfig& sharding = config.sharding;
  if (sharding.strategy == ShardingStrategy::kNoShard) return ranks_of_the_model(config);
  if (!is_hybrid(sharding.strategy)) return cluster.ranks();
  const trainer::ParallelDegrees degrees = trainer::parallel_degrees(config, cluster.ranks());
  return degrees.shard_group.value_or(cluster.ranks_per_host) * ranks_of_the_model(config);
}

struct Shards {
  int64_t kept = 0;  // parameters and optimizer state
  int64_t gradients = 0;
};

Shards shards_of(const Config& config, int64_t elements) {
  const int64_t master = size_of(config.precision.master_dtype);
  const int64_t reduced = size_of(config.precision.reduce_dtype.value_or(config.precision.dtype));
  const int64_t states = trainer::optimizer_kind(config.optimizer).state_tensors(config.optimizer);
  Shards shards;
  shards.gradients = elements * (config.precision.keep_low_precision_grads ? std::min(master, reduced) : master);
  if (!config.sharding.offload_path) shards.kept = elements * master * (1 + states);
  return shards;
}

// ZeRO-2: all parameters are gathered when backward begins.
int64_t gathered_bytes(const Config& config, int64_t ranks, int64_t parameters) {
  const bool zero2 = config.sharding.strategy == ShardingStrategy::kShardGradOp ||
                     config.sharding.strategy == ShardingStrategy::kHybridShardZero2;
  const int64_t of_rank = parameters / ranks_of_the_model(config);
  return zero2 && ranks > ranks_of_the_model(config) ? of_rank * size_of(config.precision.dtype) : 0;
}

}  // namespace

LeastMemory least_memory(const Config& config, const Cluster& cluster, int64_t parameters) {
  const int64_t ranks = ranks_of_a_copy(config, cluster);
  const Shards shards = shards_of(config, parameters / ranks);
  const int64_t gathered = gathered_bytes(config, ranks, parameters);
  const bool on_host = !cluster.device || config.sharding.cpu_offload;
  LeastMemory least;
  if (cluster.device) {
    least.device = cluster.device->context + (on_host ? gathered : shards.kept + std::max(shards.gradients, gathered));
  }
  if (on_host) {
    const int64_t of_rank =
        cluster.device ? shards.kept + shards.gradients : shards.kept + std::max(shards.gradients, gathered);
    least.host = of_rank * cluster.ranks_per_host;
  }
  return least;
}

}  // namespace fsdp::planner
