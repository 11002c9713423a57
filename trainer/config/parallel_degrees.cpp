#include "config/parallel_degrees.h"

#include <c10/util/StringUtil.h>

#include <string>
#include <vector>

#include "config/config_names.h"
#include "config/errors.h"
#include "config/refusals.h"

namespace fsdp::trainer {

namespace {

// A key that says how many ranks share one copy.
struct GivenGroup {
  const char* key;
  int64_t value;
  int64_t ranks;
  bool counts_copies = false;
};

// Returns how many ranks are left for each part if `degree` of `ranks` hold different ones.
int64_t ranks_left(const char* key, int64_t degree, int64_t ranks, const char* kind) {
  if (ranks % degree == 0) return ranks / degree;
  throw ConfigError(c10::str("key \"", key, "\": ", degree, " does not divide ", ranks, " rank(s)", kind,
                             "; accepted: ", divisors(ranks, 1, ranks)));
}

int64_t data_parallel_ranks(const ParallelismConfig& parallelism, int64_t world_size) {
  const int64_t pipeline = parallelism.pipeline_degree;
  const int64_t of_stage = ranks_left("pipeline_parallel_degree", pipeline, world_size, "");
  return ranks_left("tensor_parallel_degree", parallelism.tensor_degree, of_stage,
                    pipeline > 1 ? " of each stage" : "");
}

GivenGroup group_of_replicas(int64_t replicas, int64_t data) {
  const char* key = "data_parallel_replicate_degree";
  if (data % replicas == 0) return {key, replicas, data / replicas, /*counts_copies=*/true};
  throw ConfigError(c10::str("key \"", key, "\": ", replicas, " does not divide ", data,
                             " data-parallel rank(s); accepted: ", divisors(data, 1, data), " or null"));
}

void check_agree(const GivenGroup& a, const GivenGroup& b, int64_t data) {
  if (a.ranks == b.ranks) return;
  throw ConfigError(c10::str("key \"", b.key, "\" is ", b.value, ", but \"", a.key, "\" is ", a.value, "; of ", data,
                             " data-parallel rank(s), ", b.ranks, " and ", a.ranks,
                             " would share one copy: the keys must agree, or one of them be null"));
}

void check_fits(const GivenGroup& given, const ShardingConfig& sharding, int64_t data) {
  if (is_hybrid(sharding.strategy)) {
    if (data % given.ranks == 0) return;
    throw not_fitting(given.key, given.value, sharding, data, divisors(data, 1, data) + " or null");
  }
  const int64_t only = sharding.strategy == ShardingStrategy::kNoShard ? 1 : data;
  if (given.ranks == only) return;
  const int64_t accepted = given.counts_copies ? data / only : only;
  throw not_fitting(given.key, given.value, sharding, data,
                    c10::str(accepted, " or null (others need hybrid_shard or hybrid_shard_zero2)"));
}

}  // namespace

ParallelDegrees parallel_degrees(const Config& config, int64_t world_size) {
  const ParallelismConfig& parallelism = config.parallelism;
  ParallelDegrees degrees{.pipeline = parallelism.pipeline_degree,
                          .tensor = parallelism.tensor_degree,
                          .data = data_parallel_ranks(parallelism, world_size)};
  std::vector<GivenGroup> given;
  if (config.sharding.factor) given.push_back({"sharding_factor", *config.sharding.factor, *config.sharding.factor});
  if (parallelism.shard_degree) {
    given.push_back({"data_parallel_shard_degree", *parallelism.shard_degree, *parallelism.shard_degree});
  }
  if (parallelism.replicate_degree) given.push_back(group_of_replicas(*parallelism.replicate_degree, degrees.data));
  for (const GivenGroup& group : given) {
    check_agree(given.front(), group, degrees.data);
    check_fits(group, config.sharding, degrees.data);
    degrees.shard_group = group.ranks;
  }
  return degrees;
}

}  // namespace fsdp::trainer
