#include "training_job.h"

#include <c10/util/Exception.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>

namespace fsdp::benchmarks {
namespace {

using nlohmann::json;

// Takes values from a JSON object and remembers their keys, so that finish() can report the unknown ones.
class Keys {
 public:
  explicit Keys(const json& object) : object_(object) {}

  template <typename Value>
  void take(const char* key, Value& value) {
    const json& found = at(key);
    try {
      found.get_to(value);
    } catch (const json::exception&) {
      TORCH_CHECK(false, "job: key \"", key, "\" has the value ", found.dump(), ", which is of another type");
    }
  }
  template <typename Value>
  void take(const char* key, std::optional<Value>& value) {
    if (at(key).is_null()) return;
    Value taken{};
    take(key, taken);
    value = taken;
  }
  template <typename Value>
  void take_named(const char* key, const std::map<std::string, Value>& names, Value& value) {
    std::string name;
    take(key, name);
    const auto found = names.find(name);
    TORCH_CHECK(found != names.end(), "job: key \"", key, "\" has the unknown value \"", name, "\"");
    value = found->second;
  }
  void finish() const {
    for (const auto& item : object_.items()) {
      TORCH_CHECK(taken_.count(item.key()), "job: unknown key \"", item.key(), "\"");
    }
  }

 private:
  const json& at(const char* key) {
    TORCH_CHECK(object_.contains(key), "job: key \"", key, "\" is missing");
    taken_.insert(key);
    return object_.at(key);
  }

  const json& object_;
  std::set<std::string> taken_;
};

const std::map<std::string, ShardingStrategy> kStrategies{{"full_shard", ShardingStrategy::kFullShard},
                                                          {"shard_grad_op", ShardingStrategy::kShardGradOp},
                                                          {"no_shard", ShardingStrategy::kNoShard},
                                                          {"hybrid_shard", ShardingStrategy::kHybridShard},
                                                          {"hybrid_shard_zero2", ShardingStrategy::kHybridShardZero2}};
const std::map<std::string, BackwardPrefetch> kPrefetches{
    {"pre", BackwardPrefetch::kPre}, {"post", BackwardPrefetch::kPost}, {"none", BackwardPrefetch::kNone}};
const std::map<std::string, bool> kSharesMemory{{"gloo", false}, {"shm", true}};
const std::map<std::string, bool> kIsBf16{{"fp32", false}, {"bf16", true}};

}  // namespace

TrainingJob read_training_job(const std::string& text) {
  const json object = json::parse(text);
  Keys keys(object);
  TrainingJob job;
  keys.take("model", job.model);
  keys.take("samples", job.samples);
  keys.take_named("strategy", kStrategies, job.strategy);
  keys.take_named("backward_prefetch", kPrefetches, job.backward_prefetch);
  keys.take_named("backend", kSharesMemory, job.shares_memory);
  keys.take("forward_prefetch", job.forward_prefetch);
  keys.take("limit_all_gathers", job.limit_all_gathers);
  keys.take("sharding_factor", job.sharding_factor);
  keys.take_named("dtype", kIsBf16, job.bf16);
  keys.take("checkpointing", job.checkpointing);
  keys.take("offload", job.offload);
  keys.take("keep_memory", job.keep_memory);
  keys.take("auto_units", job.auto_units);
  keys.take("batch", job.batch);
  keys.take("warm_up", job.warm_up);
  keys.take("steps", job.steps);
  keys.take("learning_rate", job.learning_rate);
  keys.take("clip_grad_norm", job.clip_grad_norm);
  keys.take("threads", job.threads);
  keys.take("memory_limit", job.memory_limit);
  keys.finish();
  return job;
}

}  // namespace fsdp::benchmarks
