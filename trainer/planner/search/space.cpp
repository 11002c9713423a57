#include "planner/search/space.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "config/config_names.h"
#include "config/config_schema.h"

namespace fsdp::planner {
namespace {

using nlohmann::json;
using trainer::Config;
using Settings = std::vector<std::pair<std::string, json>>;

constexpr int64_t kLargestBatch = 512;
constexpr int64_t kMostPasses = 8;
// Four times the default target of auto_units for large models in bf16.
constexpr int64_t kLargeUnit = int64_t{1} << 28;

// As --set reads it.
std::string value_text(const json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_array() || value.empty()) return value.dump();
  return c10::Join(",", value.get<std::vector<std::string>>());
}

json current(const Config& config, const std::string& key) { return value_of(*trainer::find_config_key(key), config); }

// Returns the choices that differ from the config, and leave the fixed keys alone, after the config's own.
std::vector<Overrides> choices_of(const Config& config, const std::set<std::string>& fixed,
                                  const std::vector<Settings>& choices) {
  std::vector<Overrides> result = {{}};
  for (const Settings& settings : choices) {
    Overrides overrides;
    bool allowed = true;
    for (const auto& [key, value] : settings) {
      if (value == current(config, key)) continue;
      overrides.push_back(key + "=" + value_text(value));
      allowed = allowed && fixed.count(key) == 0;
    }
    if (allowed && !overrides.empty()) result.push_back(std::move(overrides));
  }
  return result;
}

// Groups of a quarter of a host to two hosts; on one host, of a quarter and of half of its ranks.
std::vector<int64_t> shard_groups(const Cluster& cluster) {
  const int64_t ranks = cluster.ranks(), host = cluster.ranks_per_host;
  std::vector<int64_t> groups;
  for (const int64_t quarters : {1, 2, 4, 8}) {
    const int64_t group = host * quarters / 4;
    if (host * quarters % 4 == 0 && group > 1 && group < ranks && ranks % group == 0) groups.push_back(group);
  }
  return groups;
}

// The value that means the same as the config's is the config's.
json factor_for(const Config& config, const Cluster& cluster, ShardingStrategy strategy, std::optional<int64_t> group) {
  const std::optional<int64_t>& given = config.sharding.factor;
  if (config.sharding.strategy == strategy) {
    if (!is_hybrid(strategy)) return current(config, "sharding_factor");
    if (!given && group == cluster.ranks_per_host) return nullptr;
  }
  return group ? json(*group) : json(nullptr);
}

Settings sharded(const Config& config, const Cluster& cluster, ShardingStrategy strategy, std::optional<int64_t> group,
                 const json& reshard = nullptr) {
  return {{"sharding_strategy", trainer::config_name(strategy)},
          {"sharding_factor", factor_for(config, cluster, strategy, group)},
          {"reshard_after_forward", reshard}};
}

std::vector<Settings> sharding_choices(const Config& config, const Cluster& cluster) {
  if (cluster.ranks() == 1) return {};
  std::vector<Settings> choices;
  for (const auto strategy : {ShardingStrategy::kFullShard, ShardingStrategy::kShardGradOp, ShardingStrategy::kNoShard})
    choices.push_back(sharded(config, cluster, strategy, std::nullopt));
  if (cluster.hosts > 1 && cluster.ranks_per_host > 1) {
    choices.push_back(
        sharded(config, cluster, ShardingStrategy::kFullShard, std::nullopt, json(cluster.ranks_per_host)));
  }
  for (const int64_t group : shard_groups(cluster)) {
    for (const auto strategy : {ShardingStrategy::kHybridShard, ShardingStrategy::kHybridShardZero2})
      choices.push_back(sharded(config, cluster, strategy, group));
  }
  return choices;
}

Settings recomputed(bool on, int64_t every, const std::vector<std::string>& kept) {
  return {{"activation_checkpointing", on},
          {"activation_checkpointing_every", every},
          {"activation_checkpointing_save_ops", kept}};
}

std::vector<Settings> recomputation_choices() {
  return {recomputed(false, 1, {}), recomputed(true, 1, {}), recomputed(true, 2, {}), recomputed(true, 3, {}),
          recomputed(true, 1, {"aten::mm", "aten::addmm"})};
}

// Files of offload_path hold what cpu_offload would move; ranks on CPUs have it on the host already.
std::vector<Settings> offload_choices(const Config& config, const Cluster& cluster) {
  if (config.sharding.offload_path || !cluster.device) return {};
  return {{{"cpu_offload", false}}, {{"cpu_offload", true}}};
}

// `none` is left out: one unit means that the whole model is gathered.
std::vector<Settings> unit_choices(const Config& config) {
  const json no_classes = json::array();
  const json target = current(config, "auto_units_target_bytes"), bound = current(config, "auto_units_memory_bound");
  const auto units = [](const char* policy, const json& classes, int64_t size, const json& bytes, const json& limit) {
    return Settings{{"wrap_policy", policy},
                    {"wrap_classes", classes},
                    {"size_min_params", size},
                    {"auto_units_target_bytes", bytes},
                    {"auto_units_memory_bound", limit}};
  };
  const bool by_class = config.sharding.wrap_policy == trainer::UnitsBy::kTransformer;
  const int64_t usual_size = trainer::ShardingConfig{}.size_min_params;
  return {units("transformer", by_class ? current(config, "wrap_classes") : no_classes, usual_size, nullptr, nullptr),
          units("size", no_classes, usual_size, nullptr, nullptr),
          units("auto_units", no_classes, usual_size, nullptr, bound),
          units("auto_units", no_classes, usual_size, kLargeUnit, bound)};
}

std::vector<Settings> limit_choices() {
  const auto limit = [](bool on, int64_t units) {
    return Settings{{"limit_all_gathers", on}, {"max_gathered_units", units}};
  };
  const int64_t usual = trainer::ShardingConfig{}.max_gathered_units;
  return {limit(true, usual), limit(true, 1), limit(true, 4), limit(false, usual)};
}

std::vector<Settings> prefetch_choices() {
  const auto prefetch = [](BackwardPrefetch backward, bool forward) {
    return Settings{{"backward_prefetch", trainer::config_name(backward)}, {"forward_prefetch", forward}};
  };
  return {prefetch(BackwardPrefetch::kPre, true), prefetch(BackwardPrefetch::kPre, false),
          prefetch(BackwardPrefetch::kPost, true), prefetch(BackwardPrefetch::kNone, false)};
}

// A plan takes longer with each pass, so that many passes are only tried if the config has as many.
std::vector<MicroBatch> divisors_of(int64_t samples, int64_t own_passes) {
  std::vector<MicroBatch> batches;
  for (int64_t size = 1; size <= samples; ++size) {
    const int64_t passes = samples / size;
    if (samples % size == 0 && passes <= std::max(own_passes, kMostPasses)) batches.push_back({size, passes});
  }
  return batches;
}

// 1, 2, 3, 4, 6, 8, 12, 16 and so on, and the config's own.
std::vector<MicroBatch> any_batches(const MicroBatch& own) {
  std::set<int64_t> sizes = {own.samples};
  for (int64_t power = 1; power <= kLargestBatch; power *= 2) {
    sizes.insert(power);
    if (power > 1 && 3 * power / 2 <= kLargestBatch) sizes.insert(3 * power / 2);
  }
  std::vector<MicroBatch> batches;
  for (const int64_t size : sizes) batches.push_back({size, own.passes});
  return batches;
}

void set_batches(const Config& config, bool keeps_samples, SearchSpace& space) {
  const MicroBatch own = {config.data.train_batch_size, config.steps.gradient_accumulation_steps};
  space.batches = keeps_samples ? divisors_of(own.samples * own.passes, own.passes) : any_batches(own);
  const auto found = std::find(space.batches.begin(), space.batches.end(), own);
  space.config_batch = static_cast<size_t>(found - space.batches.begin());
}

}  // namespace

Overrides SearchSpace::overrides(const Combination& combination, size_t batch) const {
  Overrides all;
  for (size_t i = 0; i < dimensions.size(); ++i) {
    const Overrides& choice = dimensions[i].choices[combination[i]];
    all.insert(all.end(), choice.begin(), choice.end());
  }
  const MicroBatch& own = batches[config_batch];
  const MicroBatch& wanted = batches[batch];
  if (wanted.samples != own.samples) all.push_back(c10::str("train_batch_size=", wanted.samples));
  if (wanted.passes != own.passes) all.push_back(c10::str("gradient_accumulation_steps=", wanted.passes));
  return all;
}

SearchSpace search_space(const Config& config, const Cluster& cluster, const SpaceOptions& options) {
  SearchSpace space;
  const auto add = [&](Dimension kind, const std::vector<Settings>& choices) {
    kind.choices = choices_of(config, options.fixed, choices);
    if (kind.choices.size() > 1) space.dimensions.push_back(std::move(kind));
  };
  add({.name = "sharding", .crossed = true}, sharding_choices(config, cluster));
  add({.name = "recomputation", .crossed = true, .of_activations = true}, recomputation_choices());
  add({.name = "loss", .of_activations = true}, {{{"fused_loss", false}}, {{"fused_loss", true}}});
  add({.name = "offload"}, offload_choices(config, cluster));
  add({.name = "units"}, unit_choices(config));
  add({.name = "limit", .of_gathers = true}, limit_choices());
  add({.name = "prefetch", .of_gathers = true}, prefetch_choices());
  set_batches(config, options.keeps_samples, space);
  return space;
}

}  // namespace fsdp::planner
